#include "dflash/stats.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace dflash {

void Stats::add_event(const Event & event) {
    if (timeline.size() < max_events) {
        timeline.push_back(event);
    } else {
        ++n_events_dropped;
    }
}

namespace {

void count(std::vector<std::int64_t> & offered_at, std::vector<std::int64_t> & accepted_at, int n_offered,
           int n_accepted) {
    const auto width = static_cast<std::size_t>(n_offered);
    if (offered_at.size() < width) {
        offered_at.resize(width);
        accepted_at.resize(width);
    }
    for (std::size_t i = 0; i < width; ++i) {
        ++offered_at[i];
        accepted_at[i] += static_cast<int>(i) < n_accepted;
    }
}

}  // namespace

void Stats::add_step(const Step & step) {
    ++n_verifications;
    verify_us += step.verify_us;
    beside_us += step.beside_us;
    SourceStats & mine = sources[static_cast<std::size_t>(step.source)];
    ++mine.n_steps;
    mine.expected_tokens += step.expected_tokens;
    mine.expected_us += step.expected_us;
    mine.tokens += step.n_tokens;
    mine.us += step.us;
    if (step.n_offered == 0) {
        return;
    }
    const auto add = [](SourceStats & source, int n_offered, int n_accepted) {
        ++source.n_proposals;
        source.n_proposed += n_offered;
        source.n_accepted += n_accepted;
        count(source.offered_at, source.accepted_at, n_offered, n_accepted);
    };
    const int n_own = step.n_offered - step.n_spliced;
    add(mine, n_own, std::min(step.n_accepted, n_own));
    if (step.n_spliced > 0) {
        add(sources[static_cast<std::size_t>(Source::ngram)], step.n_spliced, std::max(0, step.n_accepted - n_own));
    }
    count(offered_at, accepted_at, step.n_offered, step.n_accepted);
}

const char * source_name(Source source) {
    switch (source) {
        case Source::ngram: return "ngram";
        case Source::drafter: return "drafter";
        case Source::continued: return "continued";
        case Source::ahead: return "ahead";
        case Source::none: break;
    }
    return "plain";
}

std::int64_t now_us() {
    using namespace std::chrono;
    return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

void sleep_until_us(std::int64_t us) {
    if (const std::int64_t left = us - now_us(); left > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(left));
    }
}

}  // namespace dflash
