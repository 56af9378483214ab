// What a verification in flight may come to, the likeliest first: so many draft tokens accepted, then this bonus.
//
// Where the lattice stands at the verification's own anchor, P(j, b) is the probability of the walk x1 .. xj, b in
// it. The lattice knows nothing of why another source drafted x: there the source's own estimate of its acceptance
// counts, and the bonus after a rejection is any token but the rejected one, by the lattice's row without it.
// Knows nothing of llama.cpp.

#pragma once

#include <vector>

#include "dflash/lattice.h"
#include "dflash/token.h"

namespace dflash {

struct Outcome {
    int n_accepted = 0;
    Token bonus = -1;
    double probability = 0.0;
};

// The n likeliest outcomes of verifying `draft` after `anchor`, which is the lattice's own. acceptance:
// [draft.size()], each token's chance to be accepted once those before it are; empty: the lattice's. Where the
// lattice ends, no outcome is told. `noise` is the walk's temperature, seed and anchor_position: with a
// temperature the target's tokens are guessed with the noise that it will draw with.
std::vector<Outcome> likely_outcomes(const Lattice & lattice, const Tokens & draft,
                                     const std::vector<float> & acceptance, int n, const WalkOptions & noise);

}  // namespace dflash
