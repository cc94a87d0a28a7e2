#include "forebay/models/packed_attention.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "forebay/models/attention.h"
#include "forebay/models/attention/block_tables.h"
#include "forebay/models/attention/form.h"
#include "forebay/models/layers.h"
#include "forebay/models/parallel.h"
#include "forebay/models/row_split.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::DType;
using xla::Value;
using xla::Values;

namespace {

constexpr int64_t kSquareTokensMax = 512;

struct Passes {
  Values (*forward)(const attention::Setup&, std::span<const Value>);
  Values (*backward)(const attention::Setup&, std::span<const Value>, std::span<const Value>,
                     Value);
};
Passes PassesOf(AttentionForm form) {
  switch (form) {
    case AttentionForm::kSquare:
      return {attention::SquareForward, attention::SquareBackward};
    case AttentionForm::kHost:
      return {attention::HostForward, attention::HostBackward};
    default:
      return {attention::BlocksForward, attention::BlocksBackward};
  }
}

}  // namespace

namespace attention {

Value DotNT(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {2}, {2}}, DType::kF32); }
Value DotNN(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {2}, {1}}, DType::kF32); }
Value DotTN(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {1}, {1}}, DType::kF32); }

Value ZeroPadding(Value x, Value segments_BT) {
  xla::Graph& graph = *x.graph();
  const Value segments = xla::Reshape(segments_BT, {x.dim(0), 1});
  const Value real =
      xla::Compare(segments, xla::Constant(graph, 0, DType::kS32), xla::Comparison::kNe);
  return xla::Select(real, x, xla::Constant(graph, 0, x.dtype()));
}

Value RotateHeads(Value x, const RopeTables& rope, int64_t head_dim, double scale, bool inverse) {
  const int64_t tokens = x.dim(0), count = x.dim(1) / head_dim;
  const Value x_NAH = As(xla::Reshape(x, {tokens, count, head_dim}), DType::kF32);
  const Value rotated = xla::Reshape(ApplyRope(x_NAH, rope, inverse), {tokens, count * head_dim});
  return As(scale == 1 ? rotated : rotated * scale, x.dtype());
}

Value SoftCap(Value x, double cap) { return cap == 0 ? x : xla::Tanh(x * (1 / cap)) * cap; }

Value SoftCapGradient(Value d_result, Value result, double cap) {
  if (cap == 0) return d_result;
  const Value part = result * (1 / cap);
  return d_result * (1.0 - part * part);
}

}  // namespace attention

RowMask MakeRowMask(Value segments_BT, AttentionForm form, const AttentionBlocks& blocks,
                    const RowPlacement& placement) {
  xla::Graph& graph = *segments_BT.graph();
  RowMask mask{.form = form,
               .rows = segments_BT.dim(0),
               .length = segments_BT.dim(1),
               .split = placement.split,
               .blocks = blocks,
               .values = {segments_BT}};
  if (mask.split.length() == 0) mask.split = RowSplit(graph, Parallel(), mask.length);
  const bool whole = mask.split.devices() == 1;
  mask.ring = placement.ring && !whole;
  if (form == AttentionForm::kAuto) {
    mask.form = placement.host_kernels            ? AttentionForm::kHost
                : mask.length <= kSquareTokensMax ? AttentionForm::kSquare
                                                  : AttentionForm::kBlocks;
  }
  if (mask.ring || (!whole && mask.form == AttentionForm::kSquare)) {
    mask.form = AttentionForm::kBlocks;
  }
  if (mask.form == AttentionForm::kSquare) {
    mask.values.push_back(attention::SquareBias(segments_BT));
  } else {
    const Values tables = mask.form == AttentionForm::kHost
                              ? attention::HostTables(segments_BT, mask.split)
                              : attention::BlockTables(segments_BT, mask.split, mask.ring, blocks);
    mask.values.insert(mask.values.end(), tables.begin(), tables.end());
  }
  return mask;
}

bool RingHides(int64_t tokens, int64_t group, int64_t element_bytes) {
  constexpr int64_t kFlopsPerByte = 4600;
  return tokens * group >= kFlopsPerByte * element_bytes;
}

Value PackedAttention(Value query, Value key, Value value, const RowMask& mask,
                      const RopeTables& rope, const HeadShape& heads, const ScoreOptions& options) {
  const attention::Setup setup{.heads = heads,
                               .rows = mask.rows,
                               .length = mask.length,
                               .split = mask.split,
                               .ring = mask.ring,
                               .blocks = mask.blocks,
                               .scale = options.scale == 0
                                            ? 1.0 / std::sqrt(static_cast<double>(heads.head_dim))
                                            : options.scale,
                               .softcap = options.softcap,
                               .has_window = !options.window.empty()};
  const xla::Dims queries = {setup.tokens(), heads.query_heads * heads.head_dim};
  const xla::Dims keys = {setup.tokens(), heads.kv_heads * heads.head_dim};
  xla::Graph& graph = *query.graph();
  if (!graph.status().ok()) return graph.Fail("see the first error");
  if (query.dims() != queries || key.dims() != keys || value.dims() != keys ||
      heads.query_heads % heads.kv_heads != 0) {
    return graph.Fail(
        fmt::format("PackedAttention: query {}, key {} and value {} for {} rows of {} tokens, {} "
                    "query heads and "
                    "{} key/value heads of {}",
                    query.shape().ToString(), key.shape().ToString(), value.shape().ToString(),
                    mask.rows, mask.length, heads.query_heads, heads.kv_heads, heads.head_dim));
  }
  const xla::Dims angles = {setup.tokens(), heads.head_dim / 2};
  if (heads.head_dim % 2 != 0 || rope.cos_NH.dims() != angles || rope.sin_NH.dims() != angles ||
      setup.tokens() > std::numeric_limits<int32_t>::max()) {
    return graph.Fail(fmt::format(
        "PackedAttention: angles {} and {} for {} rows of {} tokens with heads of {}; they are "
        "[tokens, head size / 2], the head size is even and tokens are less than 2^31",
        rope.cos_NH.shape().ToString(), rope.sin_NH.shape().ToString(), mask.rows, mask.length,
        heads.head_dim));
  }
  if (setup.has_window && options.window.shape() != xla::Shape{DType::kS32, {}}) {
    return graph.Fail(fmt::format("PackedAttention: the window is {}, not an s32 scalar",
                                  options.window.shape().ToString()));
  }
  Values xs = {
      query,       key,
      value,       rope.cos_NH,
      rope.sin_NH, setup.has_window ? options.window : xla::Constant(graph, 0, DType::kS32)};
  xs.insert(xs.end(), mask.values.begin(), mask.values.end());
  const Passes passes = PassesOf(mask.form);
  return xla::CustomVjp(
      [=](std::span<const Value> in) { return passes.forward(setup, in); },
      [=](std::span<const Value> in, std::span<const Value> out, std::span<const Value> d_out) {
        return passes.backward(setup, in, out, d_out[0]);
      },
      xs)[0];
}

}  // namespace forebay::models
