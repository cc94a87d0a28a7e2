// The host kernel of decode attention equals the plugin's form, for every shape of heads, window
// and cap, writes its entries and no others, and looks at nothing beyond a slot's position.
#include "forebay/models/decode_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/rope.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::DType;
using xla::Floats;
using xla::Value;

constexpr int64_t kSlots = 5, kKvHeads = 2, kCapacity = 40;

struct Case {
  int64_t group, size;
  DType cache = DType::kF32;
  double softcap = 0;
  int64_t window = 0;
  DType heads = DType::kF32;
};

struct Inputs {
  Floats query, key, value, keys, values, positions;
};

Inputs Random(const Case& c) {
  const int64_t entries = kSlots * kKvHeads * kCapacity * c.size;
  return {.query = xla::RandomFloats(kSlots * kKvHeads * c.group * c.size, 1, -2, 2),
          .key = xla::RandomFloats(kSlots * kKvHeads * c.size, 4, -2, 2),
          .value = xla::RandomFloats(kSlots * kKvHeads * c.size, 5, -2, 2),
          .keys = xla::RandomFloats(entries, 2, -2, 2),
          .values = xla::RandomFloats(entries, 3, -2, 2),
          .positions = {0, 39, 16, -1, 17}};
}

struct Outputs {
  Floats attended, keys, values;  // [S, A * H], and the cache [S, K, C, H]
};

// The plugin's: rotation, a scatter, attention.
Value Plugin(const DecodeHeads& heads, Value positions, Value* keys, Value* values, int64_t size,
             const ScoreOptions& options) {
  xla::Graph& graph = *positions.graph();
  const auto rotated = [&](Value flat) {
    const Value split = xla::Reshape(flat, {kSlots, flat.dim(1) / size, size});
    return As(ApplyRope(As(split, DType::kF32), heads.rope), flat.dtype());
  };
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  const Value pair =
      xla::Reshape(xla::Iota(graph, {DType::kS32, {kSlots * kKvHeads}}, 0), {kSlots, kKvHeads});
  const Value row = pair * kCapacity + xla::ExpandDims(positions, 1);
  const Value busy = xla::ExpandDims(xla::Compare(positions, zero, xla::Comparison::kGe), 1);
  constexpr double kBeyond = kSlots * kKvHeads * kCapacity;
  const Value rows = xla::Reshape(
      xla::Select(busy, row, xla::Constant(graph, kBeyond, DType::kS32)), {kSlots * kKvHeads});
  const auto write = [&](Value* part, Value update) {
    const Value flat = xla::Reshape(*part, {kSlots * kKvHeads * kCapacity, size});
    *part = xla::Reshape(
        xla::ScatterSet(flat, rows,
                        As(xla::Reshape(update, {kSlots * kKvHeads, size}), part->dtype())),
        part->dims());
  };
  write(keys, rotated(heads.key));
  write(values, heads.value);
  return xla::Reshape(
      DecodeAttention(rotated(heads.query), *keys, *values, xla::Max(positions, zero), options),
      heads.query.dims());
}

Outputs Attended(const Case& c, const Inputs& in, bool on_host) {
  xla::Graph graph("attend");
  xla::UseHostProducts(graph, on_host ? 1 : 0);
  const int64_t heads = kKvHeads * c.group;
  const Value query = graph.Parameter({c.heads, {kSlots, heads * c.size}}, "query");
  const Value key = graph.Parameter({c.heads, {kSlots, kKvHeads * c.size}}, "key");
  const Value value = graph.Parameter({c.heads, {kSlots, kKvHeads * c.size}}, "value");
  const xla::Shape cache{c.cache, {kSlots, kKvHeads, kCapacity, c.size}};
  Value keys = graph.Parameter(cache, "keys"), values = graph.Parameter(cache, "values");
  const Value positions = graph.Parameter({DType::kS32, {kSlots}}, "positions");
  ScoreOptions options{.softcap = c.softcap};
  if (c.window > 0) {
    options.window = xla::Constant(graph, static_cast<double>(c.window), DType::kS32);
  }
  EXPECT_EQ(CanAttendOnHost(query, keys), on_host);
  const DecodeHeads of{.query = query,
                       .key = key,
                       .value = value,
                       .rope = MakeRopeTables(positions, MakeRotation(100, c.size, {}))};
  const Value attended = on_host ? HostDecodeAttention(of, positions, &keys, &values, options)
                                 : Plugin(of, positions, &keys, &values, c.size, options);
  const Value results[] = {attended, keys, values};
  const Result<xla::Program> program = graph.Finish(results);
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->host_kernels.size(), on_host ? 1U : 0U);
  const auto out =
      xla::RunProgram(*program, {in.query, in.key, in.value, in.keys, in.values, in.positions});
  return {.attended = out[0], .keys = out[1], .values = out[2]};
}

TEST(HostDecodeAttention, EqualsThePluginsForm) {
  for (const Case& c :
       std::vector<Case>{{.group = 3, .size = 64},
                         {.group = 1, .size = 16},
                         {.group = 7, .size = 80},
                         {.group = 8, .size = 128},
                         {.group = 2, .size = 256},
                         {.group = 3, .size = 64, .softcap = 2},
                         {.group = 3, .size = 32, .window = 5},
                         {.group = 4, .size = 48, .softcap = 30, .window = 17},
                         {.group = 3, .size = 64, .cache = DType::kBF16},
                         {.group = 5, .size = 96, .cache = DType::kBF16},
                         {.group = 3, .size = 64, .cache = DType::kBF16, .heads = DType::kBF16},
                         {.group = 3, .size = 64, .heads = DType::kBF16}}) {
    const Inputs in = Random(c);
    const Outputs host = Attended(c, in, true), plugin = Attended(c, in, false);
    const Floats &got = host.attended, &want = plugin.attended;
    ASSERT_EQ(got.size(), want.size());
    // One rounding of a bf16 apart at the most: the plugin rounds a bf16 head's rotation.
    const bool narrow = c.cache == DType::kBF16 || c.heads == DType::kBF16;
    xla::ExpectNear(host.keys, plugin.keys, narrow ? 2.0 / 128 : 1e-6, "keys");
    xla::ExpectNear(host.values, plugin.values, 0, "values");
    const auto per_slot = static_cast<size_t>(kKvHeads * c.group * c.size);
    // The plugin rounds queries and weights to a bf16 cache's type, the kernel does not.
    const double tolerance = narrow ? 0.03 : 3e-5;
    for (size_t i = 0; i < got.size(); ++i) {
      if (in.positions[i / per_slot] < 0) {
        EXPECT_EQ(got[i], 0);
      } else {
        ASSERT_NEAR(got[i], want[i], tolerance)
            << "group " << c.group << ", size " << c.size << ", slot " << i / per_slot;
      }
    }
  }
}

// A slot that was used before holds old entries, and may hold NaN.
TEST(HostDecodeAttention, NothingBeyondThePositionMatters) {
  const Case c{.group = 3, .size = 32, .window = 12};
  const Inputs in = Random(c);
  Inputs dirty = in;
  for (size_t i = 0; i < dirty.keys.size(); ++i) {
    const auto place = static_cast<int64_t>(i) / c.size % kCapacity;
    const auto slot = i / static_cast<size_t>(kKvHeads * kCapacity * c.size);
    const auto position = static_cast<int64_t>(in.positions[slot]);
    if (place <= position && place > position - c.window) continue;
    dirty.keys[i] = dirty.values[i] = std::numeric_limits<float>::quiet_NaN();
  }
  EXPECT_EQ(Attended(c, dirty, true).attended, Attended(c, in, true).attended);
}

TEST(HostDecodeAttention, WhatIsNotFiniteIsSeen) {
  const Case c{.group = 3, .size = 32};
  Inputs in = Random(c);
  in.key[0] = std::numeric_limits<float>::quiet_NaN();  // slot 0, head 0, its only entry
  const Floats out = Attended(c, in, true).attended;
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_FALSE(std::isnan(out[static_cast<size_t>(c.group * c.size)]));  // the other head
}

TEST(HostDecodeAttention, IsForItsFormsAlone) {
  const auto can = [](int64_t rows, int64_t size, DType dtype) {
    xla::Graph graph("form");
    xla::UseHostProducts(graph, rows);
    return CanAttendOnHost(graph.Parameter({DType::kF32, {2, 2 * size}}, "query"),
                           graph.Parameter({dtype, {2, 2, 8, size}}, "keys"));
  };
  EXPECT_TRUE(can(1, 64, DType::kBF16));
  EXPECT_FALSE(can(0, 64, DType::kF32));
  EXPECT_FALSE(can(1, 72, DType::kF32));
  EXPECT_FALSE(can(1, 64, DType::kF16));
}

TEST(HostDecodeAttention, CodeForAnyProcessorIsTheSameUpToRounding) {
  using decode_attention::Avx512;
  using decode_attention::Pair;
  using decode_attention::Portable;
  if (Avx512(DType::kF32) == nullptr) GTEST_SKIP() << "this processor has no AVX-512";
  constexpr int64_t kHeads = 6, kSize = 48, kEntries = 37;
  const Floats query = xla::RandomFloats(kHeads * kSize, 4);
  const Floats keys = xla::RandomFloats(kEntries * kSize, 5);
  const Floats values = xla::RandomFloats(kEntries * kSize, 6);
  Floats scores(static_cast<size_t>(kHeads * (kEntries + decode_attention::kLanes)));
  Floats wide(query.size()), any(query.size());
  Pair pair{.query = query.data(),
            .keys = keys.data(),
            .values = values.data(),
            .out = wide.data(),
            .scores = scores.data(),
            .heads = kHeads,
            .size = kSize,
            .entries = kEntries,
            .softcap = 0};
  Avx512(DType::kF32)(pair);
  pair.out = any.data();
  Portable(DType::kF32)(pair);
  xla::ExpectNear(wide, any, 1e-6);
}

}  // namespace
}  // namespace forebay::models
