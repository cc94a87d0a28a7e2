#include "forebay/models/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

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

// [counts..., dims...]: `counts` says how many tensors of `dims` lie behind one another.
xla::Dims Stacked(std::initializer_list<int64_t> counts, const xla::Dims& dims) {
  xla::Dims all;
  for (const int64_t count : counts) {
    if (count > 0) all.push_back(count);
  }
  all.insert(all.end(), dims.begin(), dims.end());
  return all;
}

// The checkpoint's names of what one parameter holds, in order. `layer` -1: of all layers.
std::vector<std::string> Parts(const ModelConfig& config, const LayerTensor& tensor,
                               int64_t layer) {
  std::vector<std::string> names;
  const int64_t first = layer < 0 ? 0 : layer, last = layer < 0 ? config.layers - 1 : layer;
  for (int64_t l = first; l <= last; ++l) {
    const std::string name = LayerName(l, tensor.suffix);
    if (tensor.experts == 0) {
      names.push_back(name);
      continue;
    }
    const size_t star = name.find('*');
    for (int64_t e = 0; e < tensor.experts; ++e) {
      names.push_back(name.substr(0, star) + std::to_string(e) + name.substr(star + 1));
    }
  }
  return names;
}

// One parameter from the tensors of a checkpoint.
Result<HostTensor> Join(const std::vector<std::string>& parts, const Shape& shape,
                        const TensorMap& tensors) {
  if (parts.size() == 1 && tensors.at(parts[0]).shape().dims == shape.dims) {
    return weights::ConvertFloat(tensors.at(parts[0]), DType::kF32);
  }
  std::span<std::byte> bytes;
  HostTensor joined = HostTensor::Allocate(shape, &bytes);
  const size_t part_bytes = bytes.size() / parts.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    FB_ASSIGN_OR_RETURN(const HostTensor one,
                        weights::ConvertFloat(tensors.at(parts[i]), DType::kF32));
    std::memcpy(bytes.data() + i * part_bytes, one.bytes().data(), part_bytes);
  }
  return joined;
}

// The inverse; the parts share the parameter's memory.
void Divide(const std::vector<std::string>& parts, const xla::Dims& dims, const HostTensor& param,
            TensorMap* tensors) {
  const Shape shape{param.shape().dtype, dims};
  const auto bytes = static_cast<size_t>(shape.bytes());
  const auto owner = std::make_shared<HostTensor>(param);
  for (size_t i = 0; i < parts.size(); ++i) {
    (*tensors)[parts[i]] = HostTensor(shape, param.bytes().subspan(i * bytes, bytes), owner);
  }
}

std::vector<ParamSpec> SharedParams(const ModelConfig& config, float norm_start) {
  const xla::Dims table = {config.vocab_size, config.width};
  std::vector<ParamSpec> specs = {
      {std::string(kEmbedName), {DType::kF32, table}, true, {}, TablePartition()},
      {std::string(kFinalNormName), {DType::kF32, {config.width}}, false, norm_start}};
  if (!config.tied_embedding) {
    specs.push_back({std::string(kHeadName), {DType::kF32, table}, true, {}, TablePartition()});
  }
  return specs;
}

// Each tensor of a checkpoint.
std::vector<ParamSpec> CheckpointSpecs(const WeightMap& map) {
  const std::vector<ParamSpec> shared = SharedParams(map.config, map.norm_start);
  std::vector<ParamSpec> specs = {shared[0]};
  for (int64_t layer = 0; layer < map.config.layers; ++layer) {
    for (const LayerTensor& tensor : map.tensors) {
      for (std::string& name : Parts(map.config, tensor, layer)) {
        specs.push_back({std::move(name), {DType::kF32, tensor.dims}, tensor.decay, tensor.start});
      }
    }
  }
  specs.insert(specs.end(), shared.begin() + 1, shared.end());
  return specs;
}

// Calls `use(name, shape, layer, tensor)` for each parameter that belongs to layers.
template <typename Use>
void ForLayerParams(const WeightMap& map, LayerLayout layout, const Use& use) {
  const bool stacked = layout == LayerLayout::kStacked;
  const int64_t first = stacked ? -1 : 0, last = stacked ? -1 : map.config.layers - 1;
  for (int64_t layer = first; layer <= last; ++layer) {
    for (const LayerTensor& tensor : map.tensors) {
      use(LayerName(layer, tensor.suffix),
          Shape{DType::kF32,
                Stacked({stacked ? map.config.layers : 0, tensor.experts}, tensor.dims)},
          layer, tensor);
    }
  }
}

}  // namespace

xla::PartitionSpec TablePartition() { return {xla::kTensorAxis, WeightAxes()}; }

xla::PartitionSpec PartitionOf(const LayerTensor& tensor) {
  std::vector<xla::Axes> dims;
  if (tensor.experts > 0) dims.emplace_back(xla::kExpertAxis);
  if (tensor.split != Split::kNone) {
    const bool matrix = tensor.dims.size() == 2;
    const xla::Axes gathered =
        tensor.experts > 0 ? xla::Axes{xla::kFsdpAxis, xla::kContextAxis} : WeightAxes();
    const xla::Axes other = matrix ? gathered : xla::Axes();
    dims.push_back(tensor.split == Split::kOut ? xla::kTensorAxis : other);
    dims.push_back(tensor.split == Split::kOut ? other : xla::kTensorAxis);
  }
  return xla::PartitionSpec(std::move(dims));
}

std::string LayerName(int64_t layer, std::string_view suffix) {
  if (layer < 0) return fmt::format("model.layers.*.{}", suffix);
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

std::vector<ParamSpec> ParamsOf(const WeightMap& map, LayerLayout layout) {
  std::vector<ParamSpec> shared = SharedParams(map.config, map.norm_start);
  std::vector<ParamSpec> specs = {shared[0]};
  ForLayerParams(
      map, layout, [&](const std::string& name, const Shape& shape, int64_t, const LayerTensor& t) {
        std::vector<xla::Axes> partition = PartitionOf(t).dims();
        if (layout == LayerLayout::kStacked) partition.emplace(partition.begin());
        specs.push_back({name, shape, t.decay, t.start, xla::PartitionSpec(std::move(partition))});
      });
  specs.insert(specs.end(), shared.begin() + 1, shared.end());
  return specs;
}

Result<TensorMap> ParamsFromCheckpoint(const WeightMap& map, const TensorMap& tensors,
                                       LayerLayout layout) {
  FB_RETURN_IF_ERROR(
      CheckCoverage(CheckpointSpecs(map), tensors, map.config.tied_embedding, "checkpoint"));
  TensorMap params;
  for (const ParamSpec& spec : SharedParams(map.config, 0)) {
    FB_ASSIGN_OR_RETURN(params[spec.name],
                        weights::ConvertFloat(tensors.at(spec.name), DType::kF32));
  }
  Status status;
  ForLayerParams(
      map, layout,
      [&](const std::string& name, const Shape& shape, int64_t layer, const LayerTensor& tensor) {
        auto joined = Join(Parts(map.config, tensor, layer), shape, tensors);
        if (joined.ok()) {
          params[name] = *std::move(joined);
        } else if (status.ok()) {
          status = joined.status();
        }
      });
  FB_RETURN_IF_ERROR(status);
  return params;
}

Result<TensorMap> ParamsToCheckpoint(const WeightMap& map, const TensorMap& params,
                                     LayerLayout layout) {
  FB_RETURN_IF_ERROR(
      CheckCoverage(ParamsOf(map, layout), params, /*tied=*/false, "set of parameters"));
  TensorMap tensors;
  for (const ParamSpec& spec : SharedParams(map.config, 0)) {
    tensors[spec.name] = params.at(spec.name);
  }
  ForLayerParams(
      map, layout,
      [&](const std::string& name, const Shape&, int64_t layer, const LayerTensor& tensor) {
        Divide(Parts(map.config, tensor, layer), tensor.dims, params.at(name), &tensors);
      });
  return tensors;
}

}  // namespace forebay::models
