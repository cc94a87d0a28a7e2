// How a GGUF file stretches its rotations, in the words of config.json. Private to weights/.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"

namespace forebay::weights {

// The tensor of the divisors of the frequencies, as llama.cpp makes it for Llama 3.1 and later.
inline constexpr std::string_view kRopeDivisors = "rope_freqs.weight";

// The value of "rope_scaling"; null where nothing is stretched. From
// "<architecture>.rope.scaling.*" (linear, yarn), or from the divisors: which must be those of
// Llama 3 with some factor. kInvalidArgument by key for what is neither, kDataLoss for divisors of
// the wrong number.
Result<nlohmann::ordered_json> GgufRopeScaling(const GgufFile& file, std::string_view architecture,
                                               int64_t head_dim, double theta);

}  // namespace forebay::weights
