#include "dflash/lattice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "dflash/noise.h"

namespace dflash {

Lattice::Lattice(Token anchor, int top_k, std::shared_ptr<const Codebooks> codebooks)
    : anchor_(anchor), top_k_(top_k), codebooks_(std::move(codebooks)) {
    if (top_k < 1) {
        throw std::invalid_argument("a lattice of " + std::to_string(top_k) + " candidates; use 1 or more");
    }
}

void Lattice::add_position(std::vector<Token> candidates, std::vector<float> scores, std::vector<float> unary,
                           std::vector<float> gate) {
    const auto k = static_cast<std::size_t>(top_k_);
    const std::size_t n_predecessors = positions_.empty() ? 1 : k;
    if (candidates.size() != k || scores.size() != n_predecessors * k) {
        throw std::invalid_argument("position " + std::to_string(size() + 1) + " has " +
                                    std::to_string(candidates.size()) + " candidates and " +
                                    std::to_string(scores.size()) + " scores; expected " + std::to_string(k) +
                                    " and " + std::to_string(n_predecessors * k));
    }
    if (!unary.empty() &&
        (!codebooks_ || unary.size() != k || gate.size() != static_cast<std::size_t>(codebooks_->rank()))) {
        throw std::invalid_argument("position " + std::to_string(size() + 1) +
                                    " has unary scores or a gate of another size than candidates and codebooks");
    }
    positions_.push_back({std::move(candidates), std::move(scores), std::move(unary), std::move(gate)});
}

const Lattice::Position & Lattice::at(int position) const {
    if (position < 1 || position > size()) {
        throw std::invalid_argument("position " + std::to_string(position) + " is outside the lattice (1 to " +
                                    std::to_string(size()) + ")");
    }
    return positions_[static_cast<std::size_t>(position - 1)];
}

bool Lattice::finite() const {
    for (const Position & position : positions_) {
        for (const float score : position.scores) {
            // -inf is a candidate outside a reduced vocabulary; NaN and +inf are damage.
            if (std::isnan(score) || score == INFINITY) {
                return false;
            }
        }
    }
    return true;
}

std::vector<float> Lattice::row(int position, Token predecessor) const {
    const Position & here = at(position);
    const auto k = static_cast<std::ptrdiff_t>(top_k_);
    const std::vector<Token> before = position == 1 ? Tokens{anchor_} : at(position - 1).candidates;
    const auto found = std::find(before.begin(), before.end(), predecessor);
    if (found != before.end()) {
        const auto begin = here.scores.begin() + (found - before.begin()) * k;
        return {begin, begin + k};
    }
    if (!here.unary.empty()) {
        return row_of(here, predecessor);
    }
    if (position == 1) {
        return here.scores;
    }
    std::vector<float> mean(static_cast<std::size_t>(k), 0.0f);
    for (std::size_t i = 0; i < here.scores.size(); ++i) {
        mean[i % mean.size()] += here.scores[i] / static_cast<float>(k);
    }
    return mean;
}

// U(b) + <A[predecessor] * gate, B[b]> for each candidate b.
std::vector<float> Lattice::row_of(const Position & here, Token predecessor) const {
    std::vector<float> gated = codebooks_->predecessor(predecessor);
    for (std::size_t r = 0; r < gated.size(); ++r) {
        gated[r] *= here.gate[r];
    }
    std::vector<float> scores = here.unary;
    for (std::size_t i = 0; i < scores.size(); ++i) {
        const std::vector<float> successor = codebooks_->successor(here.candidates[i]);
        scores[i] = std::inner_product(gated.begin(), gated.end(), successor.begin(), scores[i]);
    }
    return scores;
}

Path Lattice::walk(const WalkOptions & options) const {
    Path path;
    Token predecessor = options.predecessor < 0 ? anchor_ : options.predecessor;
    const int last = std::min<std::int64_t>(size(), std::int64_t(options.first_position) + options.n_tokens - 1);
    if (options.n_tokens > 0) {
        at(options.first_position);
    }
    for (int position = options.first_position; position <= last; ++position) {
        const std::vector<float> scores = row(position, predecessor);
        const std::vector<Token> & tokens = candidates(position);
        const bool greedy = options.temperature <= 0.0f;
        const double scale = greedy ? 1.0 : 1.0 / options.temperature;
        const auto text_position = static_cast<std::uint64_t>(options.anchor_position) + position;  // wraps, never UB
        const GumbelNoise noise(options.seed, static_cast<std::int64_t>(text_position));
        const double top = *std::max_element(scores.begin(), scores.end()) * scale;
        double total = 0.0;
        double best_score = -INFINITY;
        std::size_t best = 0;
        std::vector<TokenProbability> q(scores.size());
        for (std::size_t i = 0; i < scores.size(); ++i) {
            const double score = scores[i] * scale;
            const double weight = std::exp(score - top);
            total += weight;
            q[i] = {tokens[i], static_cast<float>(weight)};
            const double noised = greedy ? score : score + noise(tokens[i]);
            if (noised > best_score || (noised == best_score && tokens[i] < tokens[best])) {
                best = i;
                best_score = noised;
            }
        }
        for (TokenProbability & entry : q) {
            entry.probability = static_cast<float>(entry.probability / total);
        }
        predecessor = tokens[best];
        path.tokens.push_back(predecessor);
        path.probabilities.push_back(q[best].probability);
        path.q.push_back(std::move(q));
    }
    return path;
}

}  // namespace dflash
