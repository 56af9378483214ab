#include "dflash/slots.h"

#include <algorithm>
#include <fstream>
#include <mutex>

#include "dflash/error.h"
#include "dflash/log.h"

namespace dflash {

Slots::Slots(llama_context * target, const SlotsOptions & options)
    : options_(options), target_(std::make_shared<Target>(target, options.target_path, options.target)) {
    if (options_.ngram && options_.shared) {
        library_ = open_table(options_.table_path);
    }
    const auto turn = std::make_shared<std::mutex>();
    for (int i = 0; i < options_.n_slots; ++i) {
        std::shared_ptr<Drafter> drafter;
        if (!options_.drafter_path.empty()) {
            drafter = std::make_shared<Drafter>(options_.drafter_path, target_, options_.drafter);
            drafters_.push_back(drafter);
        }
        std::shared_ptr<NgramMap> table;
        if (options_.ngram) {
            table = open_table(library_ ? "" : table_path(i));
            tables_.push_back(table);
        }
        slots_.push_back(std::make_unique<Slot>(table, drafter, options_.speculation,
                                                drafter ? drafter->feature_width() : 0, library_));
        slots_.back()->speculator().take_turns(turn);
    }
    Speculator & first = slots_[0]->speculator();
    if (!options_.cost_folder.empty()) {
        cost_key_ = target_->identity() + "|" + first.identity() + "|" + std::to_string(options_.n_slots) + " slots";
        cost_path_ = CostCurves::file_in(options_.cost_folder, cost_key_);
        first.load_costs(cost_path_, cost_key_);
    }
    if (first.needs_calibration()) {
        calibrate();
    }
    for (const auto & slot : slots_) {
        if (slot != slots_[0]) {
            slot->speculator().take_costs(first);
        }
    }
}

// Nobody has used the context yet: what passes cost is tried out in it.
void Slots::calibrate() {
    const auto measure_us = [this](int n_rows, bool beside) {
        return target_->measure_us(n_rows, 1, beside ? slots_[0]->speculator().threads_beside() : 0);
    };
    try {
        slots_[0]->speculator().calibrate(measure_us, Target::max_rows, 1);
    } catch (const Error & error) {
        log(LogLevel::info, std::string("costs are learned while running: ") + error.what());
    }
}

// The table of a file, or an empty one where there is no such file.
std::shared_ptr<NgramMap> Slots::open_table(const std::string & path) {
    const bool kept = !path.empty() && std::ifstream(path).good();
    auto table = std::make_shared<NgramMap>(kept ? NgramMap::load(path) : NgramMap(options_.table));
    table->bind_tokenizer(target_->tokenizer());
    return table;
}

Slots::~Slots() {
    try {
        land();
        if (!cost_path_.empty() && slots_[0]->speculator().calibrated()) {
            slots_[0]->speculator().save_costs(cost_path_, cost_key_);
        }
        slots_.clear();  // the library takes their texts
        if (library_ && !options_.table_path.empty()) {
            library_->save(options_.table_path);
        }
        for (std::size_t i = 0; i < tables_.size() && !library_ && !options_.table_path.empty(); ++i) {
            tables_[i]->save(table_path(static_cast<int>(i)));
        }
    } catch (const std::runtime_error & error) {
        log(LogLevel::warn, std::string("cannot keep what was learned: ") + error.what());
    }
}

// The first slot's table has the name given, the others' have their number behind it.
std::string Slots::table_path(int slot) const {
    return options_.table_path.empty() || slot == 0 ? options_.table_path
                                                    : options_.table_path + "." + std::to_string(slot);
}

const Draft & Slots::draft(int slot, const Tokens & text, int max_tokens, float temperature, std::uint64_t seed,
                           bool with_q) {
    land();
    SamplerOptions sampling;
    sampling.temperature = temperature;
    sampling.seed = seed;
    // All slots' drafts must fit into one batch of the server's.
    const int room = std::min(Target::max_rows, target_->n_batch() / options_.n_slots) - 1;
    return at(slot).draft(text, std::max(0, std::min(max_tokens, room)), sampling, with_q);
}

void Slots::launch() {
    int n_threads = 0;
    for (const auto & slot : slots_) {
        if (slot->launch()) {
            n_threads = std::max(n_threads, slot->speculator().threads_beside());
        }
    }
    target_->spare_threads(n_threads);
    in_pass_ = true;
}

void Slots::land() {
    if (!in_pass_) {
        return;
    }
    in_pass_ = false;
    const std::int64_t now = now_us();
    for (const auto & slot : slots_) {
        slot->land(now);
    }
    target_->spare_threads(0);
}

std::vector<Counter> Slots::counters(int slot) const {
    const Stats stats = this->slot(slot).stats();
    std::vector<Counter> counters;
    for (int i = 1; i < n_sources; ++i) {
        const SourceStats & source = stats.sources[static_cast<std::size_t>(i)];
        const char * name = source_name(static_cast<Source>(i));
        counters.push_back({"drafted", name, static_cast<double>(source.n_proposed), true});
        counters.push_back({"accepted", name, static_cast<double>(source.n_accepted), true});
    }
    const auto share = [](std::int64_t part, std::int64_t whole) {
        return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
    };
    counters.push_back({"verifications", "", static_cast<double>(stats.n_verifications), true});
    counters.push_back({"tokens", "", static_cast<double>(stats.n_committed), true});
    counters.push_back({"verify_ms", "", static_cast<double>(stats.verify_us) / 1e3, true});
    counters.push_back({"drafter_ms", "", static_cast<double>(stats.beside_us) / 1e3, true});
    counters.push_back({"acceptance_length", "", share(stats.n_committed, stats.n_verifications), false});
    counters.push_back({"drafter_share", "", share(stats.beside_us, stats.verify_us), false});
    return counters;
}

void Slots::passed(const std::vector<Rows> & pass) {
    land();
    CostModel::Company all;
    all.texts = static_cast<int>(pass.size());
    std::vector<int> drafted;
    for (const Rows & rows : pass) {
        drafted.push_back(at(rows.slot).verifies(rows.position, rows.n_rows) ? rows.n_rows - 1 : 0);
        all.rows += rows.n_rows;
        all.drafted += drafted.back();
    }
    for (std::size_t i = 0; i < pass.size(); ++i) {
        const Rows & rows = pass[i];
        const CostModel::Company others{all.rows - rows.n_rows, all.drafted - drafted[i], all.texts - 1};
        if (drafters_.empty() || !rows.with_features) {
            at(rows.slot).rows(rows.position, rows.n_rows, nullptr, others);
            continue;
        }
        const Drafter & drafter = *drafters_[static_cast<std::size_t>(rows.slot)];
        features_.resize(static_cast<std::size_t>(rows.n_rows) * static_cast<std::size_t>(drafter.feature_width()));
        drafter.read_features(rows.first_row, rows.n_rows, features_.data());
        at(rows.slot).rows(rows.position, rows.n_rows, features_.data(), others);
    }
}

}  // namespace dflash
