// What a drafter has said about the text from some anchor on, and whether it is still of use.
//
// A block knows its anchor and the tokens revealed to it. Once the text has grown, it is usable where all that it
// knows came true: the walk then begins behind the last committed token, with that token as predecessor. A block
// that knows the text to its end gives a fresh draft (nothing was revealed: its features reach up to the anchor)
// or an ahead draft (the outcome was guessed); one that knows less gives a continued lattice.
// Knows nothing of llama.cpp.

#pragma once

#include <vector>

#include "dflash/lattice.h"
#include "dflash/stats.h"
#include "dflash/token.h"

namespace dflash {

struct DraftedBlock {
    int anchor_position = 0;  // index in the text of prefix[0], the anchor
    Tokens prefix;            // [1 + revealed]
    Lattice lattice;

    // Index in the text of the last token that it knows.
    int known_to() const { return anchor_position + static_cast<int>(prefix.size()) - 1; }
    // Lattice position at which the draft after `committed` begins; 0: the block is of no use there.
    int first_position(const Tokens & committed) const;
    // drafter (fresh), ahead or continued, for a text of so many tokens.
    Source source(int n_committed) const;
};

class DraftedBlocks {
public:
    void clear() { blocks_.clear(); }
    // Adds blocks that share an anchor's position, and forgets those of earlier ones: newer ones know more.
    void add(std::vector<DraftedBlock> blocks);

    // The usable block that knows the most; of equals the one with the later anchor. Null where none is usable.
    const DraftedBlock * best(const Tokens & committed) const;
    // The block to which nothing but its anchor, at this index of the text, was shown; null where it is not here.
    const DraftedBlock * base(int anchor_position) const;

private:
    std::vector<DraftedBlock> blocks_;
};

}  // namespace dflash
