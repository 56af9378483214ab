#include "cuda/self_check.h"

#include <cuda_runtime.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>

#include "cuda/kernel_cases.h"
#include "cuda/kernels.h"

namespace dflash::cuda {
namespace {

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

void require(bool holds, const char * what) {
    if (!holds) {
        throw std::runtime_error(std::string(what) + " differs from the reference");
    }
}

// An array on the device, copied there and back.
template <class T>
class OnDevice {
public:
    explicit OnDevice(const std::vector<T> & values) : n_(values.size()) {
        must(cudaMalloc(&data_, n_ * sizeof(T)));
        must(cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~OnDevice() { cudaFree(data_); }
    OnDevice(const OnDevice &) = delete;
    OnDevice & operator=(const OnDevice &) = delete;

    T * get() const { return data_; }
    std::vector<T> read() const {
        std::vector<T> values(n_);
        must(cudaDeviceSynchronize());
        must(cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }

private:
    std::size_t n_;
    T * data_ = nullptr;
};

void check_walk() {
    for (const float temperature : {0.0f, 0.8f}) {
        const cases::WalkCase c(2);
        const auto rows = static_cast<std::size_t>(c.n_sequences * c.n_positions);
        const OnDevice candidates(c.candidates), first(c.first);
        const OnDevice positions(c.anchor_positions);
        const OnDevice unary(c.unary), gates(c.gates), before(c.predecessors), after(c.successors);
        const OnDevice tokens(std::vector<std::int32_t>(rows, -1));
        const OnDevice q(std::vector<float>(rows * static_cast<std::size_t>(c.top_k)));
        launch(SelectorWalk{candidates.get(), unary.get(), gates.get(), before.get(), after.get(), first.get(),
                            positions.get(), c.n_positions, c.top_k, c.rank, temperature, 5, tokens.get(), q.get()},
               c.n_sequences, nullptr);
        const std::vector<std::int32_t> found = tokens.read();
        const std::vector<float> found_q = q.read();
        for (int s = 0; s < c.n_sequences; ++s) {
            const dflash::Path expected = c.expected(s, temperature, 5);
            for (int p = 0; p < c.n_positions; ++p) {
                const auto row = static_cast<std::size_t>(s * c.n_positions + p);
                require(found[row] == expected.tokens[static_cast<std::size_t>(p)], "a token");
                for (int i = 0; i < c.top_k; ++i) {
                    const auto at = static_cast<std::size_t>(i);
                    require(std::fabs(found_q[row * static_cast<std::size_t>(c.top_k) + at] -
                                      expected.q[static_cast<std::size_t>(p)][at].probability) < 1e-4f,
                            "q");
                }
            }
        }
    }
}

void check_convolution() {
    for (const dflash::ConvSide side : {dflash::ConvSide::before, dflash::ConvSide::after}) {
        const cases::ConvCase c(5);
        const OnDevice y(c.y), base(c.base), d(c.d), residual(c.residual);
        const OnDevice out(std::vector<float>(c.y.size(), NAN));
        launch(TwoTapConv{c.shape, side, y.get(), base.get(), d.get(), residual.get(), out.get()}, nullptr);
        const std::vector<float> found = out.read();
        const std::vector<float> expected = dflash::two_tap_conv(c.shape, side, c.y, c.base, c.d, c.residual);
        for (std::size_t i = 0; i < found.size(); ++i) {
            require(std::fabs(found[i] - expected[i]) < 1e-4f, "a value");
        }
    }
}

void check_verdicts() {
    for (const float temperature : {0.0f, 0.7f}) {
        for (unsigned seed = 0; seed < 20; ++seed) {
            const cases::VerifyCase c(seed, temperature);
            const OnDevice logits(c.logits), q(c.q);
            const OnDevice draft(c.draft), first_rows(c.first_rows), q_tokens(c.q_tokens), ends(c.ends);
            const OnDevice positions(c.positions);
            const OnDevice rows(std::vector<RowSummary>(static_cast<std::size_t>(c.n_rows)));
            const OnDevice n_accepted(std::vector<std::int32_t>(3)), bonus(std::vector<std::int32_t>(3));
            launch(RowStats{logits.get(), c.vocabulary, temperature, rows.get()}, c.n_rows, nullptr);
            const Verification v{
                logits.get(), rows.get(),  draft.get(), first_rows.get(), q_tokens.get(), q.get(), c.n_q,
                c.vocabulary, temperature, seed,        positions.get(),  ends.get(),     1,       n_accepted.get(),
                bonus.get()};
            launch(Judge{v}, 3, nullptr);
            if (temperature > 0.0f) {
                launch(Bonus{v}, 3, nullptr);
            }
            const std::vector<std::int32_t> found = n_accepted.read();
            const std::vector<std::int32_t> found_bonus = bonus.read();
            for (int s = 0; s < 3; ++s) {
                const dflash::Verdict expected = c.expected(s, temperature, seed);
                const auto at = static_cast<std::size_t>(s);
                const bool ended = static_cast<int>(expected.tokens.size()) == expected.n_accepted;
                require(found[at] == expected.n_accepted, "an accepted length");
                require(found_bonus[at] == (ended ? -1 : expected.tokens.back()), "a bonus token");
            }
        }
    }
}

}  // namespace

std::vector<CheckResult> self_check() {
    const std::pair<const char *, std::function<void()>> checks[] = {{"selector walk", check_walk},
                                                                     {"two-tap convolution", check_convolution},
                                                                     {"batch verification", check_verdicts}};
    std::vector<CheckResult> results;
    for (const auto & [name, check] : checks) {
        std::string problem;
        try {
            check();
        } catch (const std::exception & error) {
            problem = error.what();
        }
        results.push_back({name, problem});
    }
    return results;
}

}  // namespace dflash::cuda
