// Tokens' bytes on their way to a reader: holds back what is not yet a whole UTF-8 character and what may
// still become a stop string; ends the text before the first stop string. One thread at a time.

#pragma once

#include <string>
#include <vector>

namespace dflash {

class TextStream {
public:
    // Throws std::invalid_argument where a stop string is empty.
    explicit TextStream(std::vector<std::string> stops = {});

    // Takes the bytes of the next token; returns those that may be shown now. Nothing after a stop.
    std::string push(const std::string & bytes);
    // The end of the text: returns what was held back.
    std::string finish();
    bool stopped() const { return stopped_; }

private:
    std::size_t held_back() const;

    std::vector<std::string> stops_;
    std::string pending_;
    bool stopped_ = false;
};

}  // namespace dflash
