// The noise of coupled sampling: a standard Gumbel variate for every (seed, position, token), computed from
// a counter, so that plain decoding, every drafter and every verification see the same one.
//
// The Gumbel-max trick: argmax over tokens of log p + G is a draw from p. With G a pure function of
// (seed, position, token) the drawn text does not depend on what was drafted
// (Daliri, Musco, Suresh 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding").

#pragma once

#include <cmath>
#include <cstdint>

#include "dflash/host_device.h"
#include "dflash/token.h"

namespace dflash {

class GumbelNoise {
public:
    // position: index in the sequence of the token to be drawn.
    DFLASH_HD GumbelNoise(std::uint64_t seed, std::int64_t position)
        : key_(mix(mix(seed + golden) ^ (static_cast<std::uint64_t>(position) * odd))) {}

    // Standard Gumbel, -log(-log(u)), u uniform in (0, 1) with 53 bits.
    DFLASH_HD double operator()(Token token) const { return -std::log(-std::log1p(-survival(bits(token)))); }

    // At least operator()(token), at the price of a hash: G <= -log(1 - u), and 1 - u >= 2^-(z + 1) where z
    // is the number of leading zero bits of its counter. Spares the logarithms of tokens that cannot win.
    double upper_bound(Token token) const {
        const std::uint64_t counter = bits(token) | std::uint64_t(1) << 10;
        return (__builtin_clzll(counter) + 1) * 0.6931471805599453;
    }

    // Uniform in (0, 1), for draws that are not over tokens (accept or reject).
    DFLASH_HD double uniform(Token stream) const { return survival(bits(stream)); }

private:
    static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ull;
    static constexpr std::uint64_t odd = 0xd1342543de82ef95ull;

    // SplitMix64's finaliser (Steele, Lea, Flood 2014).
    DFLASH_HD static std::uint64_t mix(std::uint64_t x) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    }
    DFLASH_HD std::uint64_t bits(Token token) const {
        return mix(key_ + golden * (static_cast<std::uint64_t>(token) + 1));
    }
    // 1 - u from the upper 53 bits, never 0 and never 1.
    DFLASH_HD static double survival(std::uint64_t bits) {
        return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
    }

    std::uint64_t key_;
};

}  // namespace dflash
