// What the speculator needs of a model that drafts, of either kind: one that fills a block in a pass and gives
// lattices (Drafter, a DFlash model), or one that writes token by token (SmallModelDrafter).

#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "dflash/lattice.h"
#include "dflash/sampler.h"
#include "dflash/token.h"

namespace dflash {

class ModelDrafter {
public:
    virtual ~ModelDrafter() = default;

    // The first n_rows rows of the target's last pass are committed; called before the target's next pass.
    virtual void absorb(int n_rows) = 0;

    // The same for rows whose features somebody else has read: [n_rows][feature width].
    virtual void absorb_rows(const float *, int) {}

    // The text goes on at n_tokens, without anything that it has not taken in up to there.
    virtual void skip_to(int) {}

    // Only the first n_tokens of the text stand any more.
    virtual void truncate(int n_tokens) = 0;

    // n_tokens of the text are gone from position `from` on, and what followed them has moved up. A drafter that cannot
    // follow forgets all from there.
    virtual void cut_out(int from, int /*n_tokens*/) { truncate(from); }

    // How much of the text it has taken in and cannot be shown again without the target.
    virtual int n_past() const { return std::numeric_limits<int>::max(); }

    // The text is finished: threads of its own stop spinning.
    virtual void rest() {}

    virtual std::uint64_t model_bytes() const = 0;
};

class TokenDrafter : public ModelDrafter {
public:
    // At most n_tokens to follow `committed`, drawn with the target's own noise (sampling.seed) at the target's
    // temperature. May be empty. with_q: fill in Path::q; Path::probabilities stays empty.
    virtual Path draft(const Tokens & committed, int n_tokens, const SamplerOptions & sampling, bool with_q) = 0;
};

// May be asked for blocks on another thread while the target works; everything else is for the target's thread,
// and nothing of it while a block is being drafted.
class BlockDrafter : public ModelDrafter {
public:
    // A lattice for each prefix [anchor, x1 .. xr], whose anchor stands at position n_past(): one pass over blocks
    // [anchor, x1 .. xr, MASK ...] of n_tokens + 1 rows. Only positions after the prefix mean anything. Empty
    // where the drafter is of no use any more. Throws Error where llama.cpp fails.
    virtual std::vector<Lattice> revealed_lattices(const std::vector<Tokens> & prefixes, int n_tokens) = 0;

    virtual int max_tokens() const = 0;  // of a block, the anchor not counted

    // From now on passes run beside the target's (true), or in turn with them (false).
    virtual void run_beside(bool) {}
    // CPU threads that the target should leave alone while a pass runs beside its own; 0: another device drafts.
    virtual int threads_beside() const { return 0; }
};

}  // namespace dflash
