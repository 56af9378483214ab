// The lattice: what a drafter's one pass says about a block. For each position after the anchor the top-K
// candidate tokens, and for each of them a score given each candidate of the position before.
//
// Positions count from 1, the first after the anchor, as in the block [anchor, MASK, ..., MASK]. A path is one
// walk through the lattice, greedy or sampled; q is the distribution that each of its tokens was drawn from.
//
// Scores are S_t(a, b) = U_t(b) + <A[a] * (H h_t), B[b]> for DFlash 2 (unary logit plus selector term) and
// U_t(b) for DFlash 1, whose rows are all alike. The drafter's pass scores the candidates as predecessors; for any
// other token (a bonus token, a revealed one) S follows from H h_t and the codebooks A and B.
// Value type; knows nothing of llama.cpp.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dflash/token.h"

namespace dflash {

struct TokenProbability {
    Token token;
    float probability;
};

struct Path {
    Tokens tokens;
    std::vector<float> probabilities;              // [tokens.size()] of each token in its row of q
    std::vector<std::vector<TokenProbability>> q;  // [tokens.size()][top_k]
};

struct WalkOptions {
    int first_position = 1;            // where the walk begins
    int n_tokens = 1 << 20;            // at most
    Token predecessor = -1;            // the token before first_position; -1: the anchor
    float temperature = 0.0f;          // 0: greedy; q is then the softmax at temperature 1
    std::uint64_t seed = 0;            // of the Gumbel noise, shared with the target (coupled sampling)
    std::int64_t anchor_position = 0;  // index of the anchor in the sequence: keys the noise
};

// The selector's codebooks, A of predecessors and B of successors.
class Codebooks {
public:
    virtual ~Codebooks() = default;
    virtual int rank() const = 0;
    virtual std::vector<float> predecessor(Token token) const = 0;  // [rank]
    virtual std::vector<float> successor(Token token) const = 0;    // [rank]
};

class Lattice {
public:
    Lattice() = default;
    // codebooks may be null. Throws std::invalid_argument unless top_k >= 1.
    Lattice(Token anchor, int top_k, std::shared_ptr<const Codebooks> codebooks = nullptr);

    // Appends the next position. candidates: [top_k]; scores: [n_predecessors][top_k], predecessor-major, where
    // n_predecessors is 1 for position 1 (its only predecessor is the anchor) and top_k for the others. With
    // codebooks also unary: [top_k], U_t of the candidates, and gate: [rank], H h_t.
    void add_position(std::vector<Token> candidates, std::vector<float> scores, std::vector<float> unary = {},
                      std::vector<float> gate = {});

    // The scores of a position's candidates after `predecessor`: its own row where it is a candidate of the
    // position before (or the anchor, at position 1); else worked out from the codebooks; without them the mean
    // row, which is the unary score plus the selector's mean.
    std::vector<float> row(int position, Token predecessor) const;

    // Walks from options.first_position. Throws std::invalid_argument on a position outside 1..size().
    Path walk(const WalkOptions & options) const;

    int size() const { return static_cast<int>(positions_.size()); }
    bool empty() const { return positions_.empty(); }
    int top_k() const { return top_k_; }
    Token anchor() const { return anchor_; }
    const std::vector<Token> & candidates(int position) const { return at(position).candidates; }
    const std::vector<float> & scores(int position) const { return at(position).scores; }
    bool finite() const;

private:
    struct Position {
        std::vector<Token> candidates;  // [top_k]
        std::vector<float> scores;      // [1 or top_k][top_k]
        std::vector<float> unary;       // [top_k] or empty
        std::vector<float> gate;        // [rank] or empty
    };
    const Position & at(int position) const;
    std::vector<float> row_of(const Position & here, Token predecessor) const;

    Token anchor_ = -1;
    int top_k_ = 0;
    std::vector<Position> positions_;
    std::shared_ptr<const Codebooks> codebooks_;
};

}  // namespace dflash
