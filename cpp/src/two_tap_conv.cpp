#include "dflash/two_tap_conv.h"

#include <stdexcept>

namespace dflash {

std::vector<float> two_tap_conv(const TwoTapConvShape & shape, ConvSide side, const std::vector<float> & y,
                                const std::vector<float> & base, const std::vector<float> & d,
                                const std::vector<float> & residual) {
    const auto hidden = static_cast<std::size_t>(shape.hidden);
    const auto groups = static_cast<std::size_t>(shape.n_groups());
    const auto rows = static_cast<std::size_t>(shape.n_rows());
    if (shape.group_size < 1 || hidden % static_cast<std::size_t>(shape.group_size) != 0 ||
        y.size() != rows * hidden || base.size() != 2 * hidden || d.size() != rows * 4 * groups ||
        (!residual.empty() && residual.size() != y.size())) {
        throw std::invalid_argument("the convolution's sizes do not fit each other");
    }
    const std::size_t first_tap = side == ConvSide::before ? 0 : 2;
    std::vector<float> out(y.size());
    for (std::size_t t = 0; t < rows; ++t) {
        const bool first_of_block = t % static_cast<std::size_t>(shape.block_rows) == 0;
        for (std::size_t c = 0; c < hidden; ++c) {
            const float * taps = &d[(t * 4 + first_tap) * groups + c / static_cast<std::size_t>(shape.group_size)];
            const float left = first_of_block ? 0.0f : y[(t - 1) * hidden + c];
            out[t * hidden + c] = (base[c] + taps[0]) * y[t * hidden + c] + (base[hidden + c] + taps[groups]) * left +
                                  (residual.empty() ? 0.0f : residual[t * hidden + c]);
        }
    }
    return out;
}

}  // namespace dflash
