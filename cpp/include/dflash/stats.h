// What a generation did and when: counters and the timeline. Plain data, filled by Session.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace dflash {

// Where a draft came from: none (plain decoding, one row), the k4v table, a fresh draft of the drafter, the
// continuation of an earlier block, or a block drafted while the target verified.
enum class Source { none, ngram, drafter, continued, ahead };
constexpr int n_sources = 5;

const char * source_name(Source source);

struct SourceStats {
    std::int64_t n_proposals = 0;           // drafts offered to the target
    std::int64_t n_proposed = 0;            // tokens in them
    std::int64_t n_accepted = 0;            // tokens of them that the target accepted
    std::vector<std::int64_t> offered_at;   // [position in the draft] drafts that reached so far
    std::vector<std::int64_t> accepted_at;  // [position in the draft] of those, accepted there
    // Of all steps that chose this source, plain ones too: what was expected of them, and what came.
    std::int64_t n_steps = 0;
    double expected_tokens = 0.0;  // bonus included
    double expected_us = 0.0;
    std::int64_t tokens = 0;  // bonus included
    std::int64_t us = 0;
};

// Outcomes that were drafted for while the target verified.
struct AheadStats {
    std::int64_t n_launched = 0;        // verifications that a drafter pass ran beside
    std::int64_t n_outcomes = 0;        // outcomes drafted for in them
    std::int64_t n_hits = 0;            // verifications whose outcome was among them
    std::vector<std::int64_t> hits_at;  // [rank of the outcome, likeliest first] that came true
};

// A stretch of time on one lane. Times in microseconds since the generation began.
struct Event {
    enum class Lane { target, drafter, host };
    Lane lane;
    const char * name;  // prefill, verify | draft, ahead, inject | begin, propose, sample, commit, wait, learn
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
    std::int64_t verify_us = 0;  // in them
    std::int64_t beside_us = 0;  // of that, a drafter's pass ran beside
    std::array<SourceStats, n_sources> sources;
    AheadStats ahead;
    std::vector<std::int64_t> offered_at;   // [position in the draft] drafts that reached so far, of all sources
    std::vector<std::int64_t> accepted_at;  // [position in the draft] of those, accepted there
    std::vector<Event> timeline;
    std::int64_t n_events_dropped = 0;

    void add_event(const Event & event);
    // A step's draft (n_offered tokens of it accepted so far), what was expected of it, and what it came to.
    struct Step {
        Source source = Source::none;
        int n_offered = 0;
        int n_spliced = 0;  // of them, the table's behind the drafter's
        int n_accepted = 0;
        int n_tokens = 0;     // committed, the bonus included
        std::int64_t us = 0;  // drafting included
        double expected_tokens = 0.0;
        double expected_us = 0.0;
        std::int64_t verify_us = 0;
        std::int64_t beside_us = 0;
    };
    void add_step(const Step & step);
};

// Microseconds of a monotonic clock.
std::int64_t now_us();
// Returns when that clock has come to `us`, at once where it has.
void sleep_until_us(std::int64_t us);

}  // namespace dflash
