#include "forebay/learner/block_quantize.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "forebay/learner/layer_layout.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/models/model.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Value;

constexpr int64_t kUnquantizedMax = 4096;  // elements; what is smaller saves nothing
constexpr int64_t kBlockMin = 16;          // with smaller blocks the scales weigh too much
constexpr double kSignBit = 128;

double Levels(bool is_signed) { return is_signed ? 127 : 255; }

// 2^((level - (levels - 1)) / 8), the magnitude of level 0, 1, ...; 0 below.
Value Magnitude(Value level, bool is_signed) {
  const double top = Levels(is_signed) - 1;
  const Value magnitude = xla::Exp((level - top) * (std::numbers::ln2 / kStepsPerOctave));
  const Value zero = xla::Constant(*level.graph(), 0, DType::kF32);
  return xla::Select(xla::Compare(level, zero, Comparison::kGe), magnitude, zero);
}

int64_t ElementsOfOne(const models::ParamSpec& spec) {
  const auto stacked = static_cast<size_t>(StackedAxes(spec.name));
  int64_t elements = 1;
  for (size_t i = stacked; i < spec.shape.dims.size(); ++i) elements *= spec.shape.dims[i];
  return elements;
}

// How the rows of a parameter come in blocks, and a device's part of a row in pieces of blocks: the
// whole of one, unless the mesh cuts through it.
struct Blocks {
  int64_t block, piece;
  int64_t row, part;  // elements

  Blocks(const models::ParamSpec& spec, const xla::Mesh& mesh) : row(spec.shape.dims.back()) {
    const xla::Axes& axes = spec.partition.dim(spec.shape.rank() - 1);
    part = row / (mesh.size() == 1 ? 1 : mesh.Size(axes));
    block = QuantizeBlockOf(row);
    piece = std::gcd(block, part);
  }
  bool cut() const { return piece < block; }
};

// [..., elements] -> [..., elements / size, size].
Value Apart(Value x, int64_t size) {
  xla::Dims dims = x.shape().dims;
  dims.back() /= size;
  dims.push_back(size);
  return xla::Reshape(x, std::move(dims));
}

// Scales of the pieces that this device has, from those of blocks.
Value PieceScales(const RuleInput& in, const Blocks& blocks, Value scales) {
  if (!blocks.cut()) return scales;
  const int64_t pieces = blocks.block / blocks.piece;
  xla::Dims repeated = scales.shape().dims;
  repeated.push_back(pieces);
  xla::Dims dims = scales.shape().dims;
  dims.back() *= pieces;
  const Value all = xla::Reshape(xla::BroadcastTo(xla::ExpandDims(scales, -1), repeated), dims);
  const int64_t own = blocks.part / blocks.piece;
  xla::Graph& graph = *scales.graph();
  xla::Values starts(dims.size(), xla::Constant(graph, 0, DType::kS32));
  starts.back() = xla::AxisIndex(graph, in.SplitAxes(-1, -1)) * static_cast<double>(own);
  dims.back() = own;
  return xla::DynamicSlice(all, starts, dims);
}

// The largest magnitude of each block of x, in which the other devices may have a part.
Value BlockScales(const RuleInput& in, const Blocks& blocks, Value x) {
  const Value own = xla::ReduceMax(Apart(xla::Abs(x), blocks.piece), {-1});
  if (!blocks.cut()) return own;
  const int last = static_cast<int>(own.shape().rank()) - 1;
  const Value all = xla::AllGather(own, in.SplitAxes(-1, -1), last);
  return xla::ReduceMax(Apart(all, blocks.block / blocks.piece), {-1});
}

// The draws of a parameter's elements: the same in each layout of the layers.
struct DrawStream {
  uint32_t salt;  // of what a parameter is in its layer: FNV-1a of its stacked name
  int64_t first;  // the number of its first element among those of all layers
};
DrawStream StreamOf(const models::ParamSpec& spec) {
  const LayerOfName of = LayerOf(spec.name);
  DrawStream stream{.salt = 2166136261U, .first = of.layer * spec.shape.elements()};
  for (const char c : of.stacked_name) {
    stream.salt = (stream.salt ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return stream;
}

// The number of each element of this device's part, from `first` on, modulo 2^32.
Value ElementNumbers(const RuleInput& in, int64_t first) {
  xla::Graph& graph = *in.param.graph();
  const xla::Dims& dims = in.param.shape().dims;
  Value numbers = xla::Constant(graph, static_cast<double>(first & 0xFFFFFFFF), DType::kU32);
  if (!in.sharded()) {
    return numbers +
           xla::Reshape(xla::Iota(graph, {DType::kU32, {in.spec.shape.elements()}}, 0), dims);
  }
  int64_t stride = 1;
  for (int64_t i = in.spec.shape.rank() - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    Value place = xla::Iota(graph, {DType::kU32, dims}, static_cast<int>(i));
    if (const xla::Axes axes = in.SplitAxes(i, i); !axes.empty()) {
      const Value device = xla::Convert(xla::AxisIndex(graph, axes), DType::kU32);
      place = place + device * static_cast<double>(dims[at]);
    }
    numbers = numbers + place * static_cast<double>(stride & 0xFFFFFFFF);
    stride *= in.spec.shape.dims[at];
  }
  return numbers;
}

RuleOutput ApplyAdamW8bit(const RuleInput& in) {
  const Blocks blocks(in.spec, in.mesh);
  const auto read = [&](size_t slot, bool is_signed) {
    const Value scales = PieceScales(in, blocks, in.state[slot + 1]);
    const Value x = DecodeBlocks(Apart(in.state[slot], blocks.piece), scales, is_signed);
    return xla::Reshape(x, in.param.shape().dims);
  };
  const Value m = read(0, true) * in.options.beta1 + in.grad * (1 - in.options.beta1);
  const Value v = read(2, false) * in.options.beta2 + in.grad * in.grad * (1 - in.options.beta2);
  const Value step = m * in.correction1 / (xla::Sqrt(v * in.correction2) + in.options.epsilon);
  // Stored last: the step has the moments before they are rounded.
  xla::Graph& graph = *m.graph();
  const DrawStream stream = StreamOf(in.spec);
  const Value numbers = ElementNumbers(in, stream.first);
  const Value count =
      xla::Convert(in.update, DType::kU32) * xla::Constant(graph, 65536, DType::kU32);
  xla::Values state;
  for (const bool is_signed : {true, false}) {
    const auto salt = static_cast<double>(stream.salt ^ (is_signed ? 0U : 1U));
    const Value draws = HashUniform(numbers, count + xla::Constant(graph, salt, DType::kU32));
    const Value x = is_signed ? m : v;
    const Value scales = BlockScales(in, blocks, x);
    const Value codes = EncodeBlocks(Apart(x, blocks.piece), PieceScales(in, blocks, scales),
                                     is_signed, Apart(draws, blocks.piece));
    const size_t slot = is_signed ? 0 : 2;
    state.push_back(xla::Select(in.finite, xla::Reshape(codes, x.shape().dims), in.state[slot]));
    state.push_back(xla::Select(in.finite, scales, in.state[slot + 1]));
  }
  return {step, std::move(state)};
}

}  // namespace

// The finalizer of MurmurHash3.
Value HashUniform(Value numbers, Value seed) {
  xla::Graph& graph = *seed.graph();
  const auto number = [&](uint32_t n) { return xla::Constant(graph, n, DType::kU32); };
  Value h = xla::Xor(numbers * number(0x9E3779B9U), seed);
  h = xla::Xor(h, xla::ShiftRightLogical(h, number(16))) * number(0x85EBCA6BU);
  h = xla::Xor(h, xla::ShiftRightLogical(h, number(13))) * number(0xC2B2AE35U);
  h = xla::Xor(h, xla::ShiftRightLogical(h, number(16)));
  const Value bits = xla::Convert(xla::ShiftRightLogical(h, number(8)), DType::kF32);
  return bits * std::ldexp(1.0, -24);
}

Value EncodeBlocks(Value x, Value scales, bool is_signed, Value draws) {
  xla::Graph& graph = *x.graph();
  const auto number = [&](double n) { return xla::Constant(graph, n, DType::kF32); };
  const Value largest = xla::ExpandDims(scales, -1);
  const Value any = xla::Compare(largest, number(0), Comparison::kGt);
  const Value relative = xla::Select(any, xla::Abs(x) / largest, number(0));
  // The levels around it, and how far it is from the lower one.
  const double top = Levels(is_signed) - 1;
  const Value exponent =
      xla::Log(xla::Max(relative, number(1e-30))) * (kStepsPerOctave / std::numbers::ln2);
  const Value below = xla::Clamp(xla::Floor(exponent + top), -1, top - 1);
  const Value low = Magnitude(below, is_signed), high = Magnitude(below + 1, is_signed);
  const Value share = (relative - low) / (high - low);
  const Value up = xla::Compare(draws, share, Comparison::kLt);
  Value code = below + 1 + xla::Convert(up, DType::kF32);
  if (is_signed) {
    const Value negative = xla::Compare(x, number(0), Comparison::kLt);
    code = code + xla::Select(negative, number(kSignBit), number(0));
  }
  return xla::Convert(code, DType::kU8);
}

Value DecodeBlocks(Value codes, Value scales, bool is_signed) {
  xla::Graph& graph = *codes.graph();
  Value code = xla::Convert(codes, DType::kF32);
  const Value scale = xla::ExpandDims(scales, -1);
  if (!is_signed) return Magnitude(code - 1, is_signed) * scale;
  const Value sign_bit = xla::Constant(graph, kSignBit, DType::kF32);
  const Value negative = xla::Compare(code, sign_bit, Comparison::kGe);
  code = xla::Select(negative, code - kSignBit, code);
  const Value magnitude = Magnitude(code - 1, is_signed) * scale;
  return xla::Select(negative, -magnitude, magnitude);
}

Rule AdamW8bitRule(const models::ParamSpec& spec, const xla::Mesh& mesh) {
  const int64_t row = spec.shape.dims.empty() ? 1 : spec.shape.dims.back();
  if (ElementsOfOne(spec) < kUnquantizedMax || QuantizeBlockOf(row) < kBlockMin) {
    return AdamWRule(spec);
  }
  const Blocks blocks(spec, mesh);
  xla::Shape scales = spec.shape;
  scales.dims.back() /= blocks.block;
  std::vector<xla::Axes> split;
  split.reserve(spec.shape.dims.size());
  for (int64_t i = 0; i < spec.shape.rank(); ++i) split.push_back(spec.partition.dim(i));
  if (blocks.cut()) split.back() = {};
  const xla::PartitionSpec of_scales(std::move(split));
  const xla::Shape codes = {DType::kU8, spec.shape.dims};
  return {{{"m8", codes, spec.partition},
           {"m8_scale", scales, of_scales},
           {"v8", codes, spec.partition},
           {"v8_scale", scales, of_scales}},
          ApplyAdamW8bit};
}

}  // namespace forebay::learner
