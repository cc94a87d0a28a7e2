#include "forebay/learner/block_quantize.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "forebay/learner/layer_layout.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Value;

constexpr int64_t kUnquantizedMax = 4096;  // elements; what is smaller saves nothing
constexpr double kSignBit = 128;

double Levels(bool is_signed) { return is_signed ? 127 : 255; }

// 2^((level - (levels - 1)) / 8), the magnitude of level 0, 1, ...; 0 below.
Value Magnitude(Value level, bool is_signed) {
  const double top = Levels(is_signed) - 1;
  const Value magnitude = xla::Exp((level - top) * (std::numbers::ln2 / kStepsPerOctave));
  const Value zero = xla::Constant(*level.graph(), 0, DType::kF32);
  return xla::Select(xla::Compare(level, zero, Comparison::kGe), magnitude, zero);
}

// Uniform in [0, 1), 24 bits: a hash (the finalizer of MurmurHash3) of the element and the seed.
Value Uniform(const xla::Shape& shape, Value seed) {
  xla::Graph& graph = *seed.graph();
  const auto number = [&](uint32_t n) { return xla::Constant(graph, n, DType::kU32); };
  Value h = xla::Iota(graph, {DType::kU32, {shape.elements()}}, 0) * number(0x9E3779B9U);
  h = xla::Xor(h, seed);
  h = xla::Xor(h, xla::ShiftRightLogical(h, number(16))) * number(0x85EBCA6BU);
  h = xla::Xor(h, xla::ShiftRightLogical(h, number(13))) * number(0xC2B2AE35U);
  h = xla::Xor(h, xla::ShiftRightLogical(h, number(16)));
  const Value bits = xla::Convert(xla::ShiftRightLogical(h, number(8)), DType::kF32);
  return xla::Reshape(bits * std::ldexp(1.0, -24), shape.dims);
}

// [layers..., x] <-> [layers..., blocks, 256], zeros behind the last element: each layer's tensor
// has its own blocks, so that the state does not depend on the layer layout.
xla::Dims Leading(const models::ParamSpec& spec) {
  const auto& dims = spec.shape.dims;
  return {dims.begin(), dims.begin() + StackedAxes(spec.name)};
}
int64_t ElementsOfOne(const models::ParamSpec& spec) {
  int64_t elements = 1;
  for (size_t i = Leading(spec).size(); i < spec.shape.dims.size(); ++i) {
    elements *= spec.shape.dims[i];
  }
  return elements;
}
xla::Dims Flat(const models::ParamSpec& spec, int64_t elements) {
  xla::Dims dims = Leading(spec);
  dims.push_back(elements);
  return dims;
}
xla::Dims Blocks(const models::ParamSpec& spec) {
  xla::Dims dims = Flat(spec, QuantizedBlocks(ElementsOfOne(spec)));
  dims.push_back(kQuantizeBlock);
  return dims;
}
Value ToBlocks(const models::ParamSpec& spec, Value x) {
  const int64_t elements = ElementsOfOne(spec);
  const int64_t missing = QuantizedBlocks(elements) * kQuantizeBlock - elements;
  const Value flat = xla::Reshape(x, Flat(spec, elements));
  return xla::Reshape(missing == 0 ? flat : xla::Pad(flat, -1, 0, missing, 0), Blocks(spec));
}
Value FromBlocks(const models::ParamSpec& spec, Value x) {
  const int64_t elements = ElementsOfOne(spec);
  const Value flat = xla::Reshape(x, Flat(spec, QuantizedBlocks(elements) * kQuantizeBlock));
  return xla::Reshape(xla::Slice(flat, -1, 0, elements), spec.shape.dims);
}

RuleOutput ApplyAdamW8bit(const RuleInput& in) {
  const auto read = [&](size_t slot, bool is_signed) {
    return FromBlocks(in.spec, DequantizeBlocks({in.state[slot], in.state[slot + 1]}, is_signed));
  };
  const Value m = read(0, true) * in.options.beta1 + in.grad * (1 - in.options.beta1);
  const Value v = read(2, false) * in.options.beta2 + in.grad * in.grad * (1 - in.options.beta2);
  const Value step = m * in.correction1 / (xla::Sqrt(v * in.correction2) + in.options.epsilon);
  // Stored last: the step has the moments before they are rounded.
  xla::Graph& graph = *m.graph();
  const Value count =
      xla::Convert(in.update, DType::kU32) * xla::Constant(graph, 65536, DType::kU32);
  xla::Values state;
  for (const bool is_signed : {true, false}) {
    const auto salt = static_cast<double>(2 * in.index + (is_signed ? 0 : 1));
    const Value seed = count + xla::Constant(graph, salt, DType::kU32);
    const Quantized q = QuantizeBlocks(ToBlocks(in.spec, is_signed ? m : v), is_signed, seed);
    const size_t slot = is_signed ? 0 : 2;
    state.push_back(xla::Select(in.finite, q.codes, in.state[slot]));
    state.push_back(xla::Select(in.finite, q.scales, in.state[slot + 1]));
  }
  return {step, std::move(state)};
}

}  // namespace

Quantized QuantizeBlocks(Value x, bool is_signed, Value seed) {
  xla::Graph& graph = *x.graph();
  const auto number = [&](double n) { return xla::Constant(graph, n, DType::kF32); };
  const Value magnitude = xla::Abs(x);
  const Value largest = xla::ReduceMax(magnitude, {-1}, /*keep_dims=*/true);
  const Value any = xla::Compare(largest, number(0), Comparison::kGt);
  const Value relative = xla::Select(any, magnitude / largest, number(0));
  // The levels around it, and how far it is from the lower one.
  const double top = Levels(is_signed) - 1;
  const Value exponent =
      xla::Log(xla::Max(relative, number(1e-30))) * (kStepsPerOctave / std::numbers::ln2);
  const Value below = xla::Clamp(xla::Floor(exponent + top), -1, top - 1);
  const Value low = Magnitude(below, is_signed), high = Magnitude(below + 1, is_signed);
  const Value share = (relative - low) / (high - low);
  const Value up = xla::Compare(Uniform(x.shape(), seed), share, Comparison::kLt);
  Value code = below + 1 + xla::Convert(up, DType::kF32);
  if (is_signed) {
    const Value negative = xla::Compare(x, number(0), Comparison::kLt);
    code = code + xla::Select(negative, number(kSignBit), number(0));
  }
  return {xla::Convert(code, DType::kU8), xla::Squeeze(largest, -1)};
}

Value DequantizeBlocks(const Quantized& q, bool is_signed) {
  xla::Graph& graph = *q.codes.graph();
  Value code = xla::Convert(q.codes, DType::kF32);
  const Value scale = xla::ExpandDims(q.scales, -1);
  if (!is_signed) return Magnitude(code - 1, is_signed) * scale;
  const Value sign_bit = xla::Constant(graph, kSignBit, DType::kF32);
  const Value negative = xla::Compare(code, sign_bit, Comparison::kGe);
  code = xla::Select(negative, code - kSignBit, code);
  const Value magnitude = Magnitude(code - 1, is_signed) * scale;
  return xla::Select(negative, -magnitude, magnitude);
}

Rule AdamW8bitRule(const models::ParamSpec& spec) {
  if (ElementsOfOne(spec) < kUnquantizedMax) return AdamWRule(spec);
  const xla::Dims blocks = Blocks(spec);
  const xla::Dims scales(blocks.begin(), blocks.end() - 1);
  return {{{"m8", {DType::kU8, blocks}},
           {"m8_scale", {DType::kF32, scales}},
           {"v8", {DType::kU8, blocks}},
           {"v8_scale", {DType::kF32, scales}}},
          ApplyAdamW8bit};
}

}  // namespace forebay::learner
