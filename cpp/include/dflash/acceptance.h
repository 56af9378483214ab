// How often a source's drafts are accepted, with recency: what the next draft may hope for.
//
// By position: position i counts only drafts that came to it, so the estimates are the conditional probabilities
// whose running product is the chance that a draft survives to i. By confidence: the drafter's own probability of
// its likeliest token, corrected by how often tokens of about that confidence were accepted.
// Plain value type; one thread at a time.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace dflash {

class Acceptance {
public:
    // Until seen otherwise, a position is taken to be accepted with this probability.
    static constexpr float prior = 0.6f;

    // A draft of n_offered tokens had n_accepted of them accepted. confidence: [n_offered], or empty.
    void observe(int n_accepted, int n_offered, const std::vector<float> & confidence = {}) {
        const int reached = std::min(n_accepted + 1, n_offered);
        if (reached > static_cast<int>(positions_.size())) {
            positions_.resize(static_cast<std::size_t>(reached));
        }
        for (std::size_t i = 0; i < static_cast<std::size_t>(std::max(reached, 0)); ++i) {
            const float accepted = static_cast<int>(i) < n_accepted ? 1.0f : 0.0f;
            positions_[i].observe(accepted, prior);
            if (i < confidence.size()) {
                confidences_[bucket(confidence[i])].observe(accepted, confidence[i]);
            }
        }
        n_drafts_ += n_offered > 0;
    }

    // [n] conditional acceptance of positions 1 to n. An unseen position is as good as the one before it.
    std::vector<float> probabilities(int n) const {
        std::vector<float> result;
        float last = prior;
        for (int i = 0; i < n; ++i) {
            if (static_cast<std::size_t>(i) < positions_.size()) {
                last = positions_[static_cast<std::size_t>(i)].value(prior);
            }
            result.push_back(last);
        }
        return result;
    }

    // [confidence.size()] conditional acceptance of tokens of such confidence; unseen: the confidence itself.
    std::vector<float> probabilities(const std::vector<float> & confidence) const {
        std::vector<float> result;
        for (const float c : confidence) {
            result.push_back(confidences_[bucket(c)].value(c));
        }
        return result;
    }

    long n_drafts() const { return n_drafts_; }

private:
    static constexpr int memory = 60;  // verdicts that a mean looks back on, about

    // A moving mean of verdicts beside what was believed before any: that counts as two of them.
    struct Mean {
        float accepted = 0.0f;
        float believed = 0.0f;
        int n = 0;

        void observe(float verdict, float belief) {
            n = std::min(n + 1, memory);
            accepted += (verdict - accepted) / static_cast<float>(n);
            believed += (belief - believed) / static_cast<float>(n);
        }
        float value(float belief) const {
            // Within a bucket the belief still ranks: what is surer than the bucket's mean is accepted more often.
            const float corrected = std::clamp(accepted + belief - believed, 0.0f, 1.0f);
            return (corrected * static_cast<float>(n) + 2.0f * belief) / static_cast<float>(n + 2);
        }
    };
    static constexpr std::array<float, 5> edges{0.2f, 0.4f, 0.6f, 0.8f, 0.95f};

    static std::size_t bucket(float confidence) {
        return static_cast<std::size_t>(std::upper_bound(edges.begin(), edges.end(), confidence) - edges.begin());
    }

    std::vector<Mean> positions_;
    std::array<Mean, edges.size() + 1> confidences_;
    long n_drafts_ = 0;
};

}  // namespace dflash
