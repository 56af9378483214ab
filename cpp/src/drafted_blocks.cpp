#include "dflash/drafted_blocks.h"

#include <algorithm>
#include <iterator>

namespace dflash {

int DraftedBlock::first_position(const Tokens & committed) const {
    const int last = static_cast<int>(committed.size()) - 1;
    const int first = last - anchor_position + 1;
    if (known_to() > last || first > lattice.size()) {
        return 0;
    }
    return std::equal(prefix.begin(), prefix.end(), committed.begin() + anchor_position) ? first : 0;
}

Source DraftedBlock::source(int n_committed) const {
    if (anchor_position == n_committed - 1) {
        return Source::drafter;
    }
    return known_to() == n_committed - 1 ? Source::ahead : Source::continued;
}

void DraftedBlocks::add(std::vector<DraftedBlock> blocks) {
    if (blocks.empty()) {
        return;
    }
    const int anchor = blocks.front().anchor_position;
    blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(),
                                 [anchor](const DraftedBlock & block) { return block.anchor_position != anchor; }),
                  blocks_.end());
    std::move(blocks.begin(), blocks.end(), std::back_inserter(blocks_));
}

const DraftedBlock * DraftedBlocks::best(const Tokens & committed) const {
    const DraftedBlock * best = nullptr;
    for (const DraftedBlock & block : blocks_) {
        if (block.first_position(committed) == 0) {
            continue;
        }
        const bool knows_more = !best || block.known_to() > best->known_to();
        const bool newer =
            best && block.known_to() == best->known_to() && block.anchor_position > best->anchor_position;
        if (knows_more || newer) {
            best = &block;
        }
    }
    return best;
}

const DraftedBlock * DraftedBlocks::base(int anchor_position) const {
    for (const DraftedBlock & block : blocks_) {
        if (block.prefix.size() == 1 && block.anchor_position == anchor_position) {
            return &block;
        }
    }
    return nullptr;
}

}  // namespace dflash
