// LoRA adapters outside of a program: merged into host tensors, and in PEFT's format.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/learner/lora.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using weights::HostTensor;
using weights::TensorMap;
using xla::DType;

constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight", kWeight = ".weight";

// weight + scale b a.
HostTensor Merge(const HostTensor& weight, const HostTensor& a, const HostTensor& b, double scale) {
  const auto out_rows = static_cast<size_t>(weight.shape().dims[0]);
  const auto columns = static_cast<size_t>(weight.shape().dims[1]);
  const auto rank = static_cast<size_t>(a.shape().dims[0]);
  const auto w = weight.as<float>(), av = a.as<float>(), bv = b.as<float>();
  std::span<std::byte> bytes;
  HostTensor merged = HostTensor::Allocate(weight.shape(), &bytes);
  auto* const to = reinterpret_cast<float*>(bytes.data());
  std::vector<double> row(columns);
  for (size_t o = 0; o < out_rows; ++o) {
    row.assign(columns, 0);
    for (size_t r = 0; r < rank; ++r) {
      const double factor = scale * static_cast<double>(bv[o * rank + r]);
      for (size_t i = 0; i < columns; ++i)
        row[i] += factor * static_cast<double>(av[r * columns + i]);
    }
    for (size_t i = 0; i < columns; ++i) {
      to[o * columns + i] = static_cast<float>(static_cast<double>(w[o * columns + i]) + row[i]);
    }
  }
  return merged;
}

}  // namespace

Result<TensorMap> MergeAdapters(const TensorMap& base, const TensorMap& adapters, double scale) {
  TensorMap out = base;
  for (const auto& [name, a] : adapters) {
    if (!name.ends_with(kA)) continue;
    const std::string module = ModuleName(name);
    const auto b = adapters.find(module + std::string(kB));
    const auto weight = base.find(module + std::string(kWeight));
    if (b == adapters.end() || weight == base.end()) {
      return InvalidArgument(fmt::format("the adapter {} has no {}", module,
                                         b == adapters.end() ? "lora_B" : "weight in this model"));
    }
    FB_ASSIGN_OR_RETURN(const HostTensor w, weights::ConvertFloat(weight->second, DType::kF32));
    const auto& wd = w.shape().dims;
    if (wd.size() != 2 || a.shape().rank() != 2 ||
        b->second.shape() != xla::Shape{DType::kF32, {wd[0], a.shape().dims[0]}} ||
        a.shape() != xla::Shape{DType::kF32, {a.shape().dims[0], wd[1]}}) {
      return InvalidArgument(fmt::format("the adapter {} is {} and {}: not for a weight of {}",
                                         module, a.shape().ToString(), b->second.shape().ToString(),
                                         w.shape().ToString()));
    }
    out[weight->first] = Merge(w, a, b->second, scale);
  }
  return out;
}

Status ExportPeft(const std::string& folder, const LoraOptions& options, const TensorMap& adapters,
                  const std::string& base_model) {
  TensorMap named;
  std::set<std::string> modules;  // the last parts of their names
  for (const auto& [name, tensor] : adapters) {
    named.emplace(std::string(kPeftPrefix) + name, tensor);
    modules.insert(ModuleName(name));
  }
  // Whole names: exactly these modules, whatever pattern chose them.
  const nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                         {"task_type", "CAUSAL_LM"},
                                         {"base_model_name_or_path", base_model},
                                         {"inference_mode", true},
                                         {"r", options.rank},
                                         {"lora_alpha", options.alpha},
                                         {"use_rslora", options.rslora},
                                         {"lora_dropout", 0.0},
                                         {"bias", "none"},
                                         {"fan_in_fan_out", false},
                                         {"init_lora_weights", true},
                                         {"modules_to_save", nullptr},
                                         {"target_modules", modules}};
  FB_RETURN_IF_ERROR(MakeFolders(folder));
  FB_RETURN_IF_ERROR(weights::WriteSafetensors(folder + "/adapter_model.safetensors", named));
  return WriteFileAtomic(folder + "/adapter_config.json", config.dump(2) + "\n");
}

}  // namespace forebay::learner
