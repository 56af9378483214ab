// What a verification of n rows costs on this machine, learned while running, and from it the draft length
// that promises the most tokens per second.
//
// Costs are kept as multiples of a single row's: when the machine grows busy or idle, the single rows tell, and
// the multiples stay right. A multiple that has not been measured for long drifts back towards the prior, so that
// one bad measurement is tried again instead of being believed for ever.
//
// Knows nothing of llama.cpp. Plain value type; one thread at a time.

#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace dflash {

class CostModel {
public:
    static constexpr int max_rows = 256;

    // What else is in the passes: rows of other texts, how many of those are drafts, and how many texts they are. From
    // now on all rows given and asked for are those beside them; what they cost is the whole pass, and every text is
    // taken to go on by one token at least, whatever this one's draft does. Expectations leave the others' drafts out:
    // where each takes the others' for granted, all draft, although all would be better off without.
    struct Company {
        int rows = 0;
        int drafted = 0;
        int texts = 0;
    };
    void keep(const Company & company) { company_ = company; }

    // One verification of n_rows took `us` microseconds.
    void observe(int n_rows, double us);

    // Expected microseconds of a verification of n_rows: measured, interpolated between measured
    // neighbours, or extrapolated with the prior's slope beyond the largest measured one.
    double verify_us(int n_rows) const;
    // The same in the company as it is, the others' drafts included.
    double whole_us(int n_rows) const;

    // How many of the draft tokens to offer, 0 to probabilities.size(), for the best expected rate
    //     (1 + sum_i prod_{j<=i} p_j) / (verify_us(1 + width) + draft_us(width)),
    // and that rate relative to plain decoding in `gain` (1 where the width is 0).
    struct Choice {
        int width = 0;
        double gain = 1.0;
    };
    // `least`: the narrowest width to consider, whatever it gains.
    // draft_us: microseconds to draft so many tokens; empty: nothing.
    Choice best_width(const std::vector<float> & probabilities, const std::function<double(int)> & draft_us = {},
                      int least = 0) const;

    // What was measured, and back again: rows, microseconds, and by how many measurements.
    struct Measurement {
        int n_rows = 0;
        double us = 0.0;
        int n = 0;
    };
    std::vector<Measurement> measurements() const;
    static CostModel of(const std::vector<Measurement> & measurements);

    // Microseconds of a single row, the unit of everything here; 1 before anything was measured.
    double single_us() const { return single_us_; }
    bool measured() const { return observations_ > 0; }

private:
    static constexpr double slope_prior = 0.15;

    static double prior_multiple(int n_rows) { return 1.0 + slope_prior * (n_rows - 1); }
    bool known(int n_rows) const { return n_rows == 1 || cells_[static_cast<std::size_t>(n_rows)].n > 0; }
    double multiple(int n_rows) const;
    double pass_us(int n_rows) const;

    struct Cell {
        double multiple = 0.0;  // of a single row's time
        int n = 0;              // measurements
        int surprises = 0;      // the latest ones that were far slower than the mean
        long at = 0;            // observations_ when last measured
    };
    std::array<Cell, max_rows + 1> cells_{};  // [rows]; cell 1 counts only
    double single_us_ = 1.0;                  // of a single row; nothing measured: only ratios matter
    long observations_ = 0;
    Company company_;
};

// Cost models by the length of the context that the rows attend to: attention grows, everything else does not.
// A bucket that was never measured begins as the nearest one that was.
class CostCurves {
public:
    CostModel & at(int n_context);
    bool measured() const;

    // Writes and reads the curves and what else the caller keeps with them, under a key that names all that they
    // depend on. save throws std::runtime_error; load returns false, and changes nothing, where the file is
    // missing, damaged, or of another key.
    struct Others {
        std::vector<CostModel> models;
        std::vector<double> numbers;
    };
    void save(const std::string & path, const std::string & key, const Others & others) const;
    // The file of a key in a folder.
    static std::string file_in(const std::string & folder, const std::string & key);
    bool load(const std::string & path, const std::string & key, Others & others);

private:
    static constexpr int n_buckets = 12;  // up to 512 tokens, 1024, 2048, ...
    std::array<CostModel, n_buckets> buckets_;
};

}  // namespace dflash
