#include "dflash/stats.h"

#include <chrono>

namespace dflash {

void Stats::add_event(const Event & event) {
    if (timeline.size() < max_events) {
        timeline.push_back(event);
    } else {
        ++n_events_dropped;
    }
}

void Stats::add_draft(Source source, int n_offered, int n_accepted) {
    if (source == Source::none || n_offered == 0) {
        return;
    }
    SourceStats & mine = source == Source::ngram ? ngram : drafter;
    ++mine.n_proposals;
    mine.n_proposed += n_offered;
    mine.n_accepted += n_accepted;
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

std::int64_t now_us() {
    using namespace std::chrono;
    return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace dflash
