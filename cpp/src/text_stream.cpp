#include "dflash/text_stream.h"

#include <algorithm>
#include <stdexcept>

namespace dflash {
namespace {

// Bytes at the end of `text` that begin a UTF-8 character without completing it.
std::size_t incomplete_utf8(const std::string & text) {
    const std::size_t deepest = std::min<std::size_t>(3, text.size());
    for (std::size_t back = 1; back <= deepest; ++back) {
        const auto byte = static_cast<unsigned char>(text[text.size() - back]);
        if ((byte & 0xc0) == 0x80) {
            continue;  // a continuation byte: look further left for its start
        }
        const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
        return length > back ? back : 0;
    }
    return 0;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
    for (const std::string & stop : stops_) {
        if (stop.empty()) {
            throw std::invalid_argument("a stop string is empty; leave it out or give it text");
        }
    }
}

std::string TextStream::push(const std::string & bytes) {
    if (stopped_) {
        return {};
    }
    pending_ += bytes;
    std::size_t first = std::string::npos;
    for (const std::string & stop : stops_) {
        first = std::min(first, pending_.find(stop));
    }
    if (first != std::string::npos) {
        stopped_ = true;
        pending_.resize(first);
        return finish();
    }
    const std::size_t shown = pending_.size() - held_back();
    const std::string text = pending_.substr(0, shown);
    pending_.erase(0, shown);
    return text;
}

std::string TextStream::finish() {
    std::string rest;
    rest.swap(pending_);
    return rest;
}

std::size_t TextStream::held_back() const {
    std::size_t held = incomplete_utf8(pending_);
    for (const std::string & stop : stops_) {
        std::size_t overlap = std::min(stop.size() - 1, pending_.size());
        while (overlap > held && pending_.compare(pending_.size() - overlap, overlap, stop, 0, overlap) != 0) {
            --overlap;
        }
        held = std::max(held, overlap);
    }
    return held;
}

}  // namespace dflash
