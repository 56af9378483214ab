// Token ids and positions: the two integers that every other header speaks in.

#pragma once

#include <cstdint>
#include <vector>

namespace dflash {

using Token = std::int32_t;  // index into the vocabulary, >= 0
using Tokens = std::vector<Token>;

}  // namespace dflash
