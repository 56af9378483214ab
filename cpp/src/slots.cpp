#include "dflash/slots.h"

#include <algorithm>
#include <fstream>

#include "dflash/error.h"
#include "dflash/log.h"

namespace dflash {

Slots::Slots(llama_context * target, const SlotsOptions & options)
    : options_(options), target_(std::make_shared<Target>(target, options.target_path, options.target)) {
    for (int i = 0; i < options_.n_slots; ++i) {
        drafters_.push_back(std::make_shared<Drafter>(options_.drafter_path, target_, options_.drafter));
        std::shared_ptr<NgramMap> table;
        if (options_.ngram) {
            const std::string path = table_path(i);
            const bool kept = !path.empty() && std::ifstream(path).good();
            table =
                kept ? std::make_shared<NgramMap>(NgramMap::load(path)) : std::make_shared<NgramMap>(options_.table);
            table->bind_tokenizer(target_->tokenizer());
            tables_.push_back(table);
        }
        slots_.push_back(
            std::make_unique<Slot>(table, drafters_.back(), options_.speculation, drafters_.back()->feature_width()));
    }
}

Slots::~Slots() {
    for (std::size_t i = 0; i < tables_.size() && !options_.table_path.empty(); ++i) {
        try {
            tables_[i]->save(table_path(static_cast<int>(i)));
        } catch (const Error & error) {
            log(LogLevel::warn, std::string("cannot keep the table: ") + error.what());
        }
    }
}

// The first slot's table has the name given, the others' have their number behind it.
std::string Slots::table_path(int slot) const {
    return options_.table_path.empty() || slot == 0 ? options_.table_path
                                                    : options_.table_path + "." + std::to_string(slot);
}

const Draft & Slots::draft(int slot, const Tokens & text, int max_tokens, float temperature, std::uint64_t seed,
                           bool with_q) {
    SamplerOptions sampling;
    sampling.temperature = temperature;
    sampling.seed = seed;
    return slots_[static_cast<std::size_t>(slot)]->draft(text, std::min(max_tokens, Target::max_rows - 1), sampling,
                                                         with_q);
}

void Slots::rows(const Rows & rows, bool with_features, const CostModel::Company & company) {
    const auto i = static_cast<std::size_t>(rows.slot);
    features_.resize(static_cast<std::size_t>(rows.n_rows) * static_cast<std::size_t>(drafters_[i]->feature_width()));
    if (with_features) {
        drafters_[i]->read_features(rows.first_row, rows.n_rows, features_.data());
    }
    slots_[i]->rows(rows.position, rows.n_rows, with_features ? features_.data() : nullptr, company);
}

}  // namespace dflash
