#include "forebay/xla/stablehlo/emitter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

// Infinities and NaN have no decimal form in MLIR: their bits are written.
std::string_view NonFiniteBits(double value, DType dtype) {
  const bool nan = std::isnan(value);
  const bool negative = std::signbit(value);
  switch (dtype) {
    case DType::kF16:
      return nan ? "0x7E00" : negative ? "0xFC00" : "0x7C00";
    case DType::kBF16:
      return nan ? "0x7FC0" : negative ? "0xFF80" : "0x7F80";
    default:
      return nan ? "0x7FC00000" : negative ? "0xFF800000" : "0x7F800000";
  }
}

double LargestFinite(DType dtype) {
  if (dtype == DType::kF16) return 65504.0;
  if (dtype == DType::kBF16) return 3.3895313892515355e38;
  return 3.4028234663852886e38;
}

}  // namespace

std::string TypeText(const Shape& shape) {
  std::string out = "tensor<";
  for (const int64_t d : shape.dims) out += std::to_string(d) + "x";
  out.append(xla::Name(shape.dtype)).append(">");
  return out;
}

std::string TypesText(std::span<const Shape> shapes) {
  std::string out;
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (i > 0) out += ", ";
    out += TypeText(shapes[i]);
  }
  return out;
}

std::string LiteralText(double value, DType dtype) {
  if (dtype == DType::kPred) return value != 0 ? "true" : "false";
  if (!IsFloat(dtype)) {
    return dtype == DType::kU64 && value > 0 ? std::to_string(static_cast<uint64_t>(value))
                                             : std::to_string(static_cast<int64_t>(value));
  }
  // A double beyond the type's range is its infinity, as a C++ conversion would make it.
  if (std::isfinite(value) && std::fabs(value) > LargestFinite(dtype)) {
    value = std::copysign(HUGE_VAL, value);
  }
  if (!std::isfinite(value)) return std::string(NonFiniteBits(value, dtype));
  // Rounded to f32 first, so that the text is the same on every plugin; 9 digits keep f32 exactly.
  return fmt::format("{:.8e}", static_cast<double>(static_cast<float>(value)));
}

const std::string& Emitter::Name(const Value& value) const {
  const auto it = names_.find(value.node());
  FB_CHECK(it != names_.end() && !it->second[static_cast<size_t>(value.output())].empty(),
           "a value is used before it is printed");
  return it->second[static_cast<size_t>(value.output())];
}

std::string Emitter::OperandNames(const Node& node) const {
  std::string out;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (i > 0) out += ", ";
    out += Name(node.operands[i]);
  }
  return out;
}

std::vector<Shape> Emitter::OperandShapes(const Node& node) {
  std::vector<Shape> shapes;
  shapes.reserve(node.operands.size());
  for (const Value& v : node.operands) shapes.push_back(v.shape());
  return shapes;
}

void Emitter::SetName(const Node& node, int output, std::string name) {
  std::vector<std::string>& names = names_[&node];
  names.resize(node.outputs.size());
  names[static_cast<size_t>(output)] = std::move(name);
}

bool Emitter::IsLive(const Node& node, int output) const {
  const auto it = live_.find(&node);
  return it != live_.end() && it->second[static_cast<size_t>(output)];
}

std::string Emitter::FreshName() { return "%" + std::to_string(next_name_++); }

void Emitter::Line(std::string_view text) {
  out_.append(2 * (scopes_.size() + 1), ' ');
  out_.append(text).append("\n");
}

std::string Emitter::Define(std::string_view rhs) { return DefineAs(rhs, rhs); }

std::string Emitter::Collective(std::string_view rhs) {
  const size_t at = rhs.find(kChannel);
  FB_CHECK(at != std::string_view::npos, "a collective needs a channel");
  std::string text(rhs);
  text.replace(at, kChannel.size(), std::to_string(next_channel_++));
  return DefineAs(rhs, text);
}

std::string Emitter::DefineAs(std::string_view key, std::string_view rhs) {
  std::string found(key);
  for (const Scope& scope : scopes_ | std::views::reverse) {
    const auto it = scope.printed.find(found);
    if (it != scope.printed.end()) return it->second;
    if (scope.isolated) break;
  }
  std::string name = FreshName();
  Line(fmt::format("{} = {}", name, rhs));
  scopes_.back().printed.emplace(std::move(found), name);
  return name;
}

void Emitter::Result(const Node& node, std::string_view rhs) { SetName(node, 0, Define(rhs)); }

std::vector<std::string> Emitter::DefineMany(std::string_view rhs, int count) {
  const std::string name = FreshName();
  if (count == 1) {
    Line(fmt::format("{} = {}", name, rhs));
    return {name};
  }
  Line(fmt::format("{}:{} = {}", name, count, rhs));
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("{}#{}", name, i));
  return names;
}

void Emitter::UseKernel(const HostKernel& kernel) {
  const bool known = std::ranges::any_of(kernels_, [&](const HostKernel& other) {
    return other.name == kernel.name && other.entry == kernel.entry;
  });
  if (!known) kernels_.push_back(kernel);
}

std::string Emitter::ScalarConstant(double value, DType dtype) {
  return Define(fmt::format("stablehlo.constant dense<{}> : {}", LiteralText(value, dtype),
                            TypeText({dtype, {}})));
}

void Emitter::BeginNested(bool isolated) {
  scopes_.emplace_back();
  scopes_.back().isolated = isolated;
  scopes_.back().outer_text = std::move(out_);
  out_.clear();
}

std::string Emitter::EndNested() {
  FB_CHECK(scopes_.size() > 1, "EndNested without BeginNested");
  std::string text = std::exchange(out_, std::move(scopes_.back().outer_text));
  scopes_.pop_back();
  return text;
}

std::vector<std::string> Emitter::Inline(const Region& region,
                                         std::span<const std::string> arguments) {
  return Inline(region, arguments, std::vector<bool>(region.results.size(), true));
}

std::vector<std::string> Emitter::Inline(const Region& region,
                                         std::span<const std::string> arguments,
                                         const std::vector<bool>& live_results) {
  FB_CHECK(arguments.size() == region.params.size(), "region arguments");
  const auto mark = [&](const Value& v) {
    std::vector<bool>& live = live_[v.node()];
    live.resize(v.node()->outputs.size());
    live[static_cast<size_t>(v.output())] = true;
  };
  // A region may be printed more than once, each time with other results alive.
  for (const Node* node : region.nodes) live_.erase(node);
  for (size_t i = 0; i < region.results.size(); ++i) {
    if (live_results[i]) mark(region.results[i]);
  }
  for (const Node* node : region.nodes | std::views::reverse) {
    if (!live_.contains(node)) continue;
    for (const Value& v : node->operands) mark(v);
  }
  for (size_t i = 0; i < arguments.size(); ++i) SetName(*region.params[i], 0, arguments[i]);
  for (const Node* node : region.nodes) {
    if (live_.contains(node)) node->primitive->Emit(*node, *this);
  }
  std::vector<std::string> results(region.results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (live_results[i]) results[i] = Name(region.results[i]);
  }
  return results;
}

}  // namespace forebay::xla
