// What a generation did and when: counters and the timeline. Plain data, filled by Session.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dflash {

// Who made a draft. `none`: plain decoding, one row.
enum class Source { none, ngram, drafter };

struct SourceStats {
    std::int64_t n_proposals = 0;  // drafts offered to the target
    std::int64_t n_proposed = 0;   // tokens in them
    std::int64_t n_accepted = 0;   // tokens of them that the target accepted
};

// A stretch of time on one lane. Times in microseconds since the generation began.
struct Event {
    enum class Lane { target, drafter, host };
    Lane lane;
    const char * name;  // prefill, verify | draft, inject | begin, propose, sample, commit
    std::int64_t start_us;
    std::int64_t end_us;
    int n_rows = 0;      // tokens in the pass, where it is one
    int n_accepted = 0;  // of a verification: draft tokens accepted
};

struct Stats {
    static constexpr std::size_t max_events = 1 << 16;  // later ones are dropped and counted

    std::int64_t n_prompt = 0;      // prompt tokens
    std::int64_t n_reused = 0;      // of them, found in the KV cache
    std::int64_t n_completion = 0;  // tokens of the answer
    std::int64_t n_committed = 0;   // those and the end-of-generation token: what verifications gave
    std::int64_t prefill_us = 0;
    std::int64_t decode_us = 0;
    std::int64_t n_verifications = 0;
    SourceStats ngram;
    SourceStats drafter;
    std::vector<std::int64_t> offered_at;   // [position in the draft] drafts that reached so far
    std::vector<std::int64_t> accepted_at;  // [position in the draft] of those, accepted there
    std::vector<Event> timeline;
    std::int64_t n_events_dropped = 0;

    void add_event(const Event & event);
    void add_draft(Source source, int n_offered, int n_accepted);
};

// Microseconds of a monotonic clock.
std::int64_t now_us();

}  // namespace dflash
