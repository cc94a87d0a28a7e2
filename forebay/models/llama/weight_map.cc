#include "forebay/models/llama/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using weights::HostTensor;
using weights::TensorMap;
using xla::DType;
using xla::Shape;

constexpr size_t kListedMax = 12;  // of each kind of problem; the rest is counted

// Collects what is wrong with a set of tensors, to report all of it at once.
class Problems {
 public:
  void Missing(const std::string& name) { missing_.push_back(name); }
  void Extra(const std::string& name) { extra_.push_back(name); }
  void Wrong(const std::string& name, const std::string& why) {
    wrong_.push_back(fmt::format("{} ({})", name, why));
  }

  Status ToStatus(std::string_view what, size_t expected) const {
    if (missing_.empty() && extra_.empty() && wrong_.empty()) return OkStatus();
    std::string text =
        fmt::format("the {} does not hold exactly the {} tensors of this model", what, expected);
    Append("missing", missing_, &text);
    Append("not of this model", extra_, &text);
    Append("wrong", wrong_, &text);
    return InvalidArgument(text + "; check that config.json belongs to these weights");
  }

 private:
  static void Append(std::string_view kind, const std::vector<std::string>& names,
                     std::string* text) {
    if (names.empty()) return;
    *text += fmt::format("; {} {}: ", names.size(), kind);
    for (size_t i = 0; i < std::min(names.size(), kListedMax); ++i) {
      *text += (i == 0 ? "" : ", ") + names[i].substr(0, 200);
    }
    if (names.size() > kListedMax) *text += fmt::format(" and {} more", names.size() - kListedMax);
  }

  std::vector<std::string> missing_, extra_, wrong_;
};

// Whether a tied checkpoint's own copy of the head is the embedding, byte for byte.
bool IsTiedCopy(const TensorMap& tensors, const HostTensor& head) {
  const auto embed = tensors.find(std::string(kEmbedName));
  return embed != tensors.end() && embed->second.shape() == head.shape() &&
         std::ranges::equal(embed->second.bytes(), head.bytes());
}

Status CheckCoverage(const std::vector<ParamSpec>& specs, const TensorMap& tensors, bool tied,
                     std::string_view what) {
  Problems problems;
  std::set<std::string> known;
  for (const ParamSpec& spec : specs) {
    known.insert(spec.name);
    const auto it = tensors.find(spec.name);
    if (it == tensors.end()) {
      problems.Missing(spec.name);
    } else if (const Shape& shape = it->second.shape(); shape.dims != spec.shape.dims) {
      problems.Wrong(spec.name,
                     fmt::format("{}, expected {}", shape.ToString(), spec.shape.ToString()));
    } else if (!xla::IsFloat(shape.dtype)) {
      problems.Wrong(spec.name, fmt::format("{}, expected a float type", shape.ToString()));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (known.contains(name)) continue;
    if (tied && name == kHeadName) {
      if (!IsTiedCopy(tensors, tensor)) {
        problems.Wrong(name, fmt::format("config.json ties it to {}, but it differs", kEmbedName));
      }
      continue;
    }
    problems.Extra(name);
  }
  return problems.ToStatus(what, specs.size());
}

// [layers, dims...] from one tensor a layer.
Result<HostTensor> Stack(const ModelConfig& config, const LayerTensor& layer_tensor,
                         const TensorMap& tensors) {
  Shape shape{DType::kF32, {config.layers}};
  shape.dims.insert(shape.dims.end(), layer_tensor.dims.begin(), layer_tensor.dims.end());
  std::span<std::byte> bytes;
  HostTensor stacked = HostTensor::Allocate(shape, &bytes);
  const size_t layer_bytes = bytes.size() / static_cast<size_t>(config.layers);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    FB_ASSIGN_OR_RETURN(
        const HostTensor one,
        weights::ConvertFloat(tensors.at(LayerName(layer, layer_tensor.suffix)), DType::kF32));
    std::memcpy(bytes.data() + static_cast<size_t>(layer) * layer_bytes, one.bytes().data(),
                layer_bytes);
  }
  return stacked;
}

// One layer of a stacked tensor; shares its memory.
HostTensor Unstack(const HostTensor& stacked, const LayerTensor& layer_tensor, int64_t layer) {
  const Shape shape{stacked.shape().dtype, layer_tensor.dims};
  const auto bytes = static_cast<size_t>(shape.bytes());
  return HostTensor(shape, stacked.bytes().subspan(static_cast<size_t>(layer) * bytes, bytes),
                    std::make_shared<HostTensor>(stacked));
}

std::vector<std::string_view> SharedNames(const ModelConfig& config) {
  std::vector<std::string_view> names = {kEmbedName, kFinalNormName};
  if (!config.tied_embedding) names.push_back(kHeadName);
  return names;
}

}  // namespace

std::vector<LayerTensor> LlamaLayerTensors(const ModelConfig& config) {
  const int64_t width = config.width, ff = config.ff_width;
  const int64_t query = config.query_heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  return {{"input_layernorm.weight", {width}, false},
          {"self_attn.q_proj.weight", {query, width}, true},
          {"self_attn.k_proj.weight", {kv, width}, true},
          {"self_attn.v_proj.weight", {kv, width}, true},
          {"self_attn.o_proj.weight", {width, query}, true},
          {"post_attention_layernorm.weight", {width}, false},
          {"mlp.gate_proj.weight", {ff, width}, true},
          {"mlp.up_proj.weight", {ff, width}, true},
          {"mlp.down_proj.weight", {width, ff}, true}};
}

std::string LayerName(int64_t layer, std::string_view suffix) {
  if (layer < 0) return fmt::format("model.layers.*.{}", suffix);
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

std::vector<ParamSpec> LlamaParams(const ModelConfig& config, LayerLayout layout) {
  std::vector<ParamSpec> specs;
  const std::vector<int64_t> table = {config.vocab_size, config.width};
  specs.push_back({std::string(kEmbedName), {DType::kF32, table}, true});
  const std::vector<LayerTensor> layer_tensors = LlamaLayerTensors(config);
  if (layout == LayerLayout::kStacked) {
    for (const LayerTensor& t : layer_tensors) {
      std::vector<int64_t> dims = {config.layers};
      dims.insert(dims.end(), t.dims.begin(), t.dims.end());
      specs.push_back({LayerName(-1, t.suffix), {DType::kF32, dims}, t.decay});
    }
  } else {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      for (const LayerTensor& t : layer_tensors) {
        specs.push_back({LayerName(layer, t.suffix), {DType::kF32, t.dims}, t.decay});
      }
    }
  }
  specs.push_back({std::string(kFinalNormName), {DType::kF32, {config.width}}, false});
  if (!config.tied_embedding) specs.push_back({std::string(kHeadName), {DType::kF32, table}, true});
  return specs;
}

Result<TensorMap> LlamaFromCheckpoint(const ModelConfig& config, const TensorMap& tensors,
                                      LayerLayout layout) {
  FB_RETURN_IF_ERROR(CheckCoverage(LlamaParams(config, LayerLayout::kPerLayer), tensors,
                                   config.tied_embedding, "checkpoint"));
  TensorMap params;
  for (const ParamSpec& spec : LlamaParams(config, layout)) {
    const auto it = tensors.find(spec.name);
    if (it == tensors.end()) continue;  // a stacked one, below
    FB_ASSIGN_OR_RETURN(params[spec.name], weights::ConvertFloat(it->second, DType::kF32));
  }
  if (layout == LayerLayout::kStacked) {
    for (const LayerTensor& t : LlamaLayerTensors(config)) {
      FB_ASSIGN_OR_RETURN(params[LayerName(-1, t.suffix)], Stack(config, t, tensors));
    }
  }
  return params;
}

Result<TensorMap> LlamaToCheckpoint(const ModelConfig& config, const TensorMap& params,
                                    LayerLayout layout) {
  FB_RETURN_IF_ERROR(
      CheckCoverage(LlamaParams(config, layout), params, /*tied=*/false, "set of parameters"));
  if (layout == LayerLayout::kPerLayer) return params;
  TensorMap tensors;
  for (const std::string_view name : SharedNames(config)) {
    tensors[std::string(name)] = params.at(std::string(name));
  }
  for (const LayerTensor& t : LlamaLayerTensors(config)) {
    const HostTensor& stacked = params.at(LayerName(-1, t.suffix));
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      tensors[LayerName(layer, t.suffix)] = Unstack(stacked, t, layer);
    }
  }
  return tensors;
}

}  // namespace forebay::models
