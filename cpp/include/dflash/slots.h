// The slots of a server over one target context that the server runs: a Slot and a drafter context for each, all over
// one drafter model. What llama-server's draft-dflash-parallel type is made of.
//
//     draft(slot, ...)   before a pass, for each slot that generates
//     launch()           then, once
//     passed(rows)       after the pass, with every slot's rows in it
//
// Drafter passes beside the target's pass run one after the other, on threads that the target leaves to them.
//
// Nothing is thrown after construction: a drafter that fails is given up, its slot goes on with the table.
// One thread at a time.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dflash/drafter.h"
#include "dflash/slot.h"

struct llama_context;
struct llama_model;

namespace dflash {

struct SlotsOptions {
    int n_slots = 1;
    std::string target_path;   // for its header
    std::string drafter_path;  // as well; empty: the table drafts alone
    TargetOptions target;      // types, flash attention, threadpool: the drafters' contexts share them
    DrafterOptions drafter;    // model: the one that the server has loaded
    SpeculatorOptions speculation;
    bool ngram = true;  // a k4v table for each slot
    NgramMapOptions table;
    bool shared = false;      // and one for all, which takes in every text that is done with
    std::string table_path;   // the tables are read from here and written at the end; empty: not kept
    std::string cost_folder;  // cost curves are read from here and written at the end; empty: not kept
};

// A number that a slot counts, for whoever reports it.
struct Counter {
    const char * name;
    const char * source;  // of the drafts counted; empty where it is about all
    double value;
    bool summed;  // over requests it adds up
};

class Slots {
public:
    // Throws ModelError, IncompatibleDrafterError, NgramMapError, std::invalid_argument.
    Slots(llama_context * target, const SlotsOptions & options);
    ~Slots();

    // A draft behind the slot's text, of at most max_tokens. seed: of the noise that tokens are drawn with.
    const Draft & draft(int slot, const Tokens & text, int max_tokens, float temperature, std::uint64_t seed,
                        bool with_q);

    // Begins drafting beside the pass that comes now.
    void launch();

    // Rows [first_row, first_row + n_rows) of a pass are the slot's, at positions from `position` on. with_features:
    // false for rows that give none (embeddings pinned to one position).
    struct Rows {
        int slot = 0;
        int position = 0;
        int first_row = 0;
        int n_rows = 0;
        bool with_features = true;
    };
    // The target's last pass, an entry for each slot that was in it.
    void passed(const std::vector<Rows> & pass);

    // A request begins in the slot. So many tokens of its last draft stand.
    void begin(int slot) { at(slot).begin(); }
    void accepted(int slot, int n_tokens) { at(slot).accepted(n_tokens); }

    // Of the slot's present request: tokens drafted and accepted by source; verifications, tokens that they committed,
    // milliseconds that they took and that a drafter's pass ran beside; acceptance length and drafter's share.
    std::vector<Counter> counters(int slot) const;

    const Slot & slot(int i) const { return *slots_[static_cast<std::size_t>(i)]; }

private:
    void calibrate();
    void land();
    Slot & at(int i) { return *slots_[static_cast<std::size_t>(i)]; }
    std::shared_ptr<NgramMap> open_table(const std::string & path);
    std::string table_path(int slot) const;

    SlotsOptions options_;
    std::shared_ptr<Target> target_;
    std::vector<std::shared_ptr<Drafter>> drafters_;  // [n_slots] or none
    std::vector<std::shared_ptr<NgramMap>> tables_;   // [n_slots] or none
    std::shared_ptr<NgramMap> library_;               // null: not shared
    std::vector<std::unique_ptr<Slot>> slots_;
    std::string cost_path_;
    std::string cost_key_;
    std::vector<float> features_;
    bool in_pass_ = false;  // between launch and land
};

}  // namespace dflash
