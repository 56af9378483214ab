// What the speculator needs of a model that drafts, whichever kind it is: DFlash (Drafter) or a small language
// model (SmallModelDrafter). And Draft, what any source returns.

#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "dflash/lattice.h"
#include "dflash/sampler.h"
#include "dflash/stats.h"
#include "dflash/token.h"

namespace dflash {

struct Draft {
    Tokens tokens;  // may be empty: plain decoding
    Source source = Source::none;
    // [tokens.size()] the distribution that each token was drawn from; empty for a source that proposes one
    // token with certainty (q is then 1 for it).
    std::vector<std::vector<TokenProbability>> q;
};

class ModelDrafter {
public:
    virtual ~ModelDrafter() = default;

    // At most n_tokens to follow `committed`, drawn with the target's own noise (sampling.seed) at the target's
    // temperature. May be empty. with_q: fill in Draft::q, which rejection sampling needs.
    virtual Draft draft(const Tokens & committed, int n_tokens, const SamplerOptions & sampling, bool with_q) = 0;

    // The first n_rows rows of the target's last pass are committed; called before the target's next pass.
    virtual void absorb(int n_rows) = 0;

    // Only the first n_tokens of the text stand any more.
    virtual void truncate(int n_tokens) = 0;

    // How much of the text it has taken in and cannot be shown again without the target.
    virtual int n_past() const { return std::numeric_limits<int>::max(); }

    virtual std::uint64_t model_bytes() const = 0;
};

}  // namespace dflash
