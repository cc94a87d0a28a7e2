#include "forebay/learner/layer_layout.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
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

namespace forebay::learner {
namespace {

using weights::HostTensor;
using weights::TensorMap;

constexpr std::string_view kAnyLayer = ".*.";

// The arrays that `name` stacks, in the order of their bytes: "model.layers.0.x", "...1.x"; itself
// when it stacks none. `shape` becomes that of one of them.
std::vector<std::string> Parts(const std::string& name, xla::Shape* shape) {
  const size_t at = name.find(kAnyLayer);
  if (at == std::string::npos) return {name};
  const int64_t count = shape->dims.front();
  shape->dims.erase(shape->dims.begin());
  const xla::Shape rest = *shape;
  std::vector<std::string> out;
  for (int64_t i = 0; i < count; ++i) {
    *shape = rest;
    for (std::string& part :
         Parts(fmt::format("{}.{}.{}", name.substr(0, at), i, name.substr(at + kAnyLayer.size())),
               shape)) {
      out.push_back(std::move(part));
    }
  }
  return out;
}

// The tensor `name`, checked.
Result<HostTensor> Find(const TensorMap& tensors, const std::string& name, const xla::Shape& shape,
                        std::string_view what) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    return InvalidArgument(fmt::format("{} has no \"{}\" ({})", what, name, shape.ToString()));
  }
  if (found->second.shape() != shape) {
    return InvalidArgument(fmt::format("{} has \"{}\" as {}, expected {}", what, name,
                                       found->second.shape().ToString(), shape.ToString()));
  }
  return found->second;
}

}  // namespace

int64_t StackedAxes(std::string_view name) {
  int64_t axes = 0;
  for (size_t at = name.find(kAnyLayer); at != std::string_view::npos;
       at = name.find(kAnyLayer, at + 1)) {
    ++axes;
  }
  return axes;
}

LayerOfName LayerOf(const std::string& name) {
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    const size_t end = name.find('.', dot + 1);
    if (end == name.npos) break;
    const std::string part = name.substr(dot + 1, end - dot - 1);
    if (part.empty() || part.size() > 9 || part.find_first_not_of("0123456789") != part.npos) {
      continue;
    }
    return {name.substr(0, dot) + std::string(kAnyLayer) + name.substr(end + 1), std::stoll(part)};
  }
  return {name, 0};
}

TensorMap SplitLayers(const TensorMap& tensors) {
  TensorMap out;
  for (const auto& [name, tensor] : tensors) {
    if (StackedAxes(name) == 0) {
      out.emplace(name, tensor);
      continue;
    }
    xla::Shape one = tensor.shape();
    const std::vector<std::string> parts = Parts(name, &one);
    const auto bytes = static_cast<size_t>(one.bytes());
    for (size_t i = 0; i < parts.size(); ++i) {
      std::span<std::byte> to;
      HostTensor part = HostTensor::Allocate(one, &to);
      std::memcpy(to.data(), tensor.bytes().data() + i * bytes, bytes);
      out.emplace(parts[i], std::move(part));
    }
  }
  return out;
}

Result<TensorMap> JoinLayers(const TensorMap& tensors, std::span<const models::ParamSpec> wanted,
                             std::string_view what) {
  TensorMap out;
  std::set<std::string> used;
  for (const models::ParamSpec& spec : wanted) {
    xla::Shape one = spec.shape;
    const std::vector<std::string> parts = Parts(spec.name, &one);
    used.insert(parts.begin(), parts.end());
    if (StackedAxes(spec.name) == 0) {
      FB_ASSIGN_OR_RETURN(HostTensor tensor, Find(tensors, spec.name, spec.shape, what));
      out.emplace(spec.name, std::move(tensor));
      continue;
    }
    const auto bytes = static_cast<size_t>(one.bytes());
    std::span<std::byte> to;
    HostTensor whole = HostTensor::Allocate(spec.shape, &to);
    for (size_t i = 0; i < parts.size(); ++i) {
      FB_ASSIGN_OR_RETURN(const HostTensor part, Find(tensors, parts[i], one, what));
      std::memcpy(to.data() + i * bytes, part.bytes().data(), bytes);
    }
    out.emplace(spec.name, std::move(whole));
  }
  for (const auto& [name, tensor] : tensors) {
    if (used.contains(name)) continue;
    return InvalidArgument(fmt::format("{} has \"{}\", which nothing here uses", what, name));
  }
  return out;
}

}  // namespace forebay::learner
