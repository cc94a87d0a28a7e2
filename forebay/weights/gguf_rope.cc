#include "forebay/weights/gguf_rope.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/dequantize.h"
#include "forebay/weights/gguf.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::ordered_json;

// What all Llama 3 models have in common; only the factor differs (8, and 32 in Llama 3.2).
constexpr double kLowTurns = 1, kHighTurns = 4, kOriginalContext = 8192;

double Llama3Divisor(double frequency, double factor) {
  const double turns = kOriginalContext * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - kLowTurns) / (kHighTurns - kLowTurns), 0.0, 1.0);
  return 1 / ((1 - kept) / factor + kept);
}

Result<Json> FromDivisors(const GgufTensor& tensor, int64_t head_dim, double theta) {
  if (tensor.type != GgmlType::kF32 || tensor.dims != std::vector<int64_t>{head_dim / 2}) {
    return DataLoss(
        fmt::format("the GGUF tensor {} must hold {} f32 numbers, one for each two "
                    "dimensions of a head",
                    kRopeDivisors, head_dim / 2));
  }
  std::vector<float> divisors(static_cast<size_t>(head_dim / 2));
  Dequantize(tensor.type, tensor.bytes, divisors);
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  bool plain = true, llama3 = factor > 1 && std::isfinite(factor);
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double frequency =
        std::pow(theta, -static_cast<double>(i) / static_cast<double>(divisors.size()));
    plain = plain && divisors[i] == 1;
    llama3 = llama3 && std::abs(divisors[i] / Llama3Divisor(frequency, factor) - 1) < 1e-4;
  }
  if (plain) return Json(nullptr);
  if (llama3) {
    return Json{{"rope_type", "llama3"},
                {"factor", factor},
                {"low_freq_factor", kLowTurns},
                {"high_freq_factor", kHighTurns},
                {"original_max_position_embeddings", static_cast<int64_t>(kOriginalContext)}};
  }
  return InvalidArgument(
      fmt::format("the GGUF file divides its rotary frequencies ({}) in another way than Llama 3 "
                  "models do, which is not supported: use the Hugging Face folder of the model",
                  kRopeDivisors));
}

Result<double> Required(const GgufFile& file, const std::string& key, std::string_view asker) {
  if (!file.Has(key)) return InvalidArgument(fmt::format("{} needs {}", asker, key));
  FB_ASSIGN_OR_RETURN(const double value, file.Float(key));
  if (!(value > 0) || !std::isfinite(value)) {
    return InvalidArgument(fmt::format("{} is {}; it must be a positive number", key, value));
  }
  return value;
}

}  // namespace

Result<Json> GgufRopeScaling(const GgufFile& file, std::string_view architecture, int64_t head_dim,
                             double theta) {
  const std::string prefix = fmt::format("{}.rope.scaling.", architecture);
  if (const auto found = file.tensors().find(kRopeDivisors); found != file.tensors().end()) {
    return FromDivisors(found->second, head_dim, theta);
  }
  if (!file.Has(prefix + "type")) return Json(nullptr);
  FB_ASSIGN_OR_RETURN(const std::string_view type, file.String(prefix + "type"));
  if (type == "none") return Json(nullptr);
  const std::string asker = fmt::format("{}type {}", prefix, type);
  if (type != "linear" && type != "yarn") {
    return InvalidArgument(
        fmt::format("{} is not supported; supported are none, linear and yarn", asker));
  }
  Json scaling = {{"rope_type", std::string(type)}};
  FB_ASSIGN_OR_RETURN(scaling["factor"], Required(file, prefix + "factor", asker));
  if (type == "linear") return scaling;
  const std::string context = prefix + "original_context_length";
  if (!file.Has(context)) return InvalidArgument(fmt::format("{} needs {}", asker, context));
  FB_ASSIGN_OR_RETURN(scaling["original_max_position_embeddings"], file.Unsigned(context));
  for (const char* tuned : {"attn_factor", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
                            "yarn_beta_slow", "yarn_log_multiplier"}) {
    if (!file.Has(prefix + tuned)) continue;
    return InvalidArgument(
        fmt::format("{} with {}{} is not supported: use the Hugging Face folder of the model",
                    asker, prefix, tuned));
  }
  return scaling;
}

}  // namespace forebay::weights
