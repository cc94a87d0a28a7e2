// Rows that are split over the axis "context": with the keys travelling around the ring or
// gathered, attention and its gradients are those of one device; the ring's memory for keys does
// not depend on how many devices share a row; and dealt rows give each device the same work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/packed_attention.h"
#include "forebay/models/parallel.h"
#include "forebay/models/rope.h"
#include "forebay/models/row_split.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {
namespace {

using xla::Argument;
using xla::DType;
using xla::PartitionSpec;
using xla::Value;
using xla::Values;

struct Case {
  HeadShape heads{};
  int64_t rows = 1, length = 0;  // of whole rows
  bool window = false;
  double softcap = 0;
  AttentionBlocks blocks;
};

enum class Way { kRing, kGathered, kHostGathered };

std::string Describe(Way way) {
  return way == Way::kRing ? "ring" : way == Way::kGathered ? "gathered" : "gathered, host";
}

xla::Mesh ContextMesh(int64_t devices) {
  return xla::Mesh::Create({.context = devices}, devices).value();
}

std::vector<float> Runs(Rng& rng, int64_t length) {
  std::vector<float> segments;
  float next = 1;
  while (static_cast<int64_t>(segments.size()) < length) {
    const auto run = static_cast<int64_t>(1 + rng.Below(static_cast<uint64_t>(length) / 2 + 1));
    const float id = rng.Below(4) == 0 ? 0 : next++;
    for (int64_t i = 0; i < run && static_cast<int64_t>(segments.size()) < length; ++i) {
      segments.push_back(id);
    }
  }
  return segments;
}

// query, key, value, cotangent [B, R, W], segments, positions [B, R], window.
std::vector<Argument> Draw(Rng& rng, const Case& c) {
  const int64_t a = c.heads.query_heads * c.heads.head_dim;
  const int64_t k = c.heads.kv_heads * c.heads.head_dim;
  std::vector<Argument> arguments;
  for (const int64_t width : {a, k, k, a}) {
    arguments.push_back(xla::RandomArgument({c.rows, c.length, width}, rng.Below(1 << 30), -2, 2));
  }
  const xla::Shape row{DType::kS32, {c.rows, c.length}};
  std::vector<float> segments, positions;
  for (int64_t b = 0; b < c.rows; ++b) {
    const std::vector<float> ids = Runs(rng, c.length);
    segments.insert(segments.end(), ids.begin(), ids.end());
    for (int64_t t = 0; t < c.length; ++t) positions.push_back(static_cast<float>(t));
  }
  arguments.push_back({row, segments});
  arguments.push_back({row, positions});
  arguments.push_back({{DType::kS32, {}}, {static_cast<float>(1 + rng.Below(24))}});
  return arguments;
}

// Attended and the gradients of query, key and value, zero at padding.
Values Attend(const Case& c, const Parallel& parallel, Way way, std::span<const Value> xs) {
  xla::Graph& graph = *xs[0].graph();
  const int64_t length = xs[0].dim(1), tokens = c.rows * length;
  const RowSplit split(graph, parallel, length);
  const Rotation rotation{.frequencies =
                              std::vector<float>(static_cast<size_t>(c.heads.head_dim / 2), 0.3F)};
  const auto flat = [&](Value x) { return xla::Reshape(split.Deal(x), {tokens, -1}); };
  const Value segments = split.Deal(xs[4]);
  const RowMask mask = MakeRowMask(
      segments, way == Way::kHostGathered ? AttentionForm::kHost : AttentionForm::kBlocks, c.blocks,
      {split, way == Way::kRing});
  const RopeTables rope = MakeRopeTables(xla::Reshape(split.Deal(xs[5]), {tokens}), rotation);
  const Value attended =
      PackedAttention(flat(xs[0]), flat(xs[1]), flat(xs[2]), mask, rope, c.heads,
                      {.softcap = c.softcap, .window = c.window ? xs[6] : Value()});
  const Value zero = xla::Constant(graph, 0, DType::kF32);
  const Value real = xla::ExpandDims(
      xla::Compare(xs[4], xla::Constant(graph, 0, DType::kS32), xla::Comparison::kNe), 2);
  const Value out = split.Collect(xla::Reshape(attended, xs[0].dims()));
  Values results = {xla::Select(real, out, zero)};
  for (const Value& d : xla::Vjp(Values{out}, Values{xs[3]}, xs.first(3))) results.push_back(d);
  return results;
}

std::vector<xla::Floats> OnDevices(const Case& c, int64_t devices, Way way,
                                   const std::vector<Argument>& arguments) {
  std::vector<PartitionSpec> in(6, PartitionSpec{{}, xla::kContextAxis});
  in.emplace_back();
  const std::vector<PartitionSpec> out(4, PartitionSpec{{}, xla::kContextAxis});
  return xla::RunShardMap(
      {ContextMesh(devices), in, out},
      [&](std::span<const Value> xs) { return Attend(c, Parallel(true), way, xs); }, arguments);
}

std::vector<xla::Floats> OnOneDevice(const Case& c, const std::vector<Argument>& arguments) {
  return xla::RunFn(
      [&](std::span<const Value> xs) { return Attend(c, Parallel(), Way::kGathered, xs); },
      arguments);
}

void ExpectEqual(const std::vector<xla::Floats>& got, const std::vector<xla::Floats>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size());
    double largest = 0, difference = 0;
    for (size_t j = 0; j < got[i].size(); ++j) {
      largest = std::max<double>(largest, std::abs(expected[i][j]));
      difference = std::max<double>(difference, std::abs(got[i][j] - expected[i][j]));
      ASSERT_TRUE(std::isfinite(got[i][j])) << "result " << i;
    }
    EXPECT_LE(difference, 1e-5 * (1 + largest)) << "result " << i;
  }
}

// Windows, caps, groups, several rows; parts that are odd (not dealt) and blocks that divide
// nothing.
TEST(RingAttention, EqualsOneDeviceOnRandomRows) {
  const std::vector<Case> cases = {
      {.heads = {2, 2, 4}, .length = 64, .blocks = {8, 8}},
      {.heads = {4, 2, 8}, .rows = 2, .length = 48, .window = true, .blocks = {4, 8}},
      {.heads = {3, 1, 4}, .rows = 2, .length = 80, .softcap = 1.5, .blocks = {8, 3}},
      {.heads = {2, 1, 4}, .length = 40, .window = true, .blocks = {16, 16}}};
  Rng rng(11);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<Argument> arguments = Draw(rng, cases[i]);
    const auto expected = OnOneDevice(cases[i], arguments);
    for (const int64_t devices : {2, 4, 8}) {
      for (const Way way : {Way::kRing, Way::kGathered, Way::kHostGathered}) {
        if (way != Way::kRing && devices == 4) continue;
        SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(devices) + " devices, " +
                     Describe(way));
        ExpectEqual(OnDevices(cases[i], devices, way, arguments), expected);
      }
    }
  }
}

TEST(RingAttention, N3_NanAtPaddingOfAnotherDeviceChangesNothing) {
  const Case c{.heads = {2, 1, 4}, .length = 64, .blocks = {8, 8}};
  Rng rng(5);
  std::vector<Argument> arguments = Draw(rng, c);
  for (size_t t = 0; t < 64; ++t) arguments[4].values[t] = t < 20 ? 1 : t < 33 ? 0 : t < 60 ? 2 : 0;
  const std::vector<Way> ways = {Way::kRing, Way::kHostGathered};
  std::vector<std::vector<xla::Floats>> expected;
  for (const Way way : ways) expected.push_back(OnDevices(c, 4, way, arguments));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < 4; ++i) {
    const size_t width = arguments[i].values.size() / 64;
    for (size_t t = 0; t < 64; ++t) {
      if (arguments[4].values[t] != 0) continue;
      std::fill_n(arguments[i].values.begin() + static_cast<int64_t>(t * width), width, nan);
    }
  }
  for (size_t i = 0; i < ways.size(); ++i) {
    EXPECT_EQ(OnDevices(c, 4, ways[i], arguments), expected[i]) << Describe(ways[i]);
  }
}

// Blocks of keys that each device has to compute, one row of one segment.
xla::Floats WorkOfEachDevice(int64_t length, int64_t devices, bool ring) {
  const std::vector<Argument> arguments = {
      {{DType::kS32, {1, length}}, xla::Floats(static_cast<size_t>(length), 1.0F)}};
  const std::vector<PartitionSpec> in = {{{}, xla::kContextAxis}}, out = {{xla::kContextAxis}};
  return xla::RunShardMap(
      {ContextMesh(devices), in, out},
      [&](std::span<const Value> xs) -> Values {
        xla::Graph& graph = *xs[0].graph();
        const RowSplit split(graph, Parallel(true), xs[0].dim(1));
        const RowMask mask =
            MakeRowMask(split.Deal(xs[0]), AttentionForm::kBlocks, {8, 8}, {split, ring});
        const Value zero = xla::Constant(graph, 0, DType::kS32);
        const Value first = mask.values[1], last = mask.values[2];
        return {xla::Reshape(xla::ReduceSum(xla::Max(last - first + 1, zero), {0, 1}), {1})};
      },
      arguments)[0];
}

TEST(RowSplit, DealtRowsGiveEachDeviceTheSameWork) {
  // 512 tokens are 64 blocks of 8: 64 * 65 / 2 pairs.
  for (const bool ring : {true, false}) {
    EXPECT_EQ(WorkOfEachDevice(512, 4, ring), xla::Floats(4, 520));
  }
}

// Every even number of tokens a device; the order that a batch has is what comes back.
TEST(RowSplit, CollectUndoesDealAndGatherHasTheRowInItsOrder) {
  for (const int64_t devices : {2, 4, 8}) {
    const int64_t length = devices * 6;
    std::vector<float> places;
    for (int64_t i = 0; i < 2 * length; ++i) places.push_back(static_cast<float>(i));
    const std::vector<PartitionSpec> in = {{{}, xla::kContextAxis}},
                                     out = {{{}, xla::kContextAxis},
                                            {xla::kContextAxis},
                                            {{}, xla::kContextAxis}};
    const auto results =
        xla::RunShardMap({ContextMesh(devices), in, out},
                         [&](std::span<const Value> xs) -> Values {
                           const RowSplit split(*xs[0].graph(), Parallel(true), xs[0].dim(1));
                           const Value dealt = split.Deal(xs[0]);
                           const Value whole = split.Gather(dealt);
                           return {split.Collect(dealt), xla::ExpandDims(whole, 0),
                                   split.Collect(split.Scatter(whole))};
                         },
                         {{{DType::kF32, {2, length}}, places}});
    EXPECT_EQ(results[0], places);
    std::vector<float> all, summed;
    for (int64_t d = 0; d < devices; ++d) all.insert(all.end(), places.begin(), places.end());
    for (const float place : places) summed.push_back(place * static_cast<float>(devices));
    EXPECT_EQ(results[1], all);
    EXPECT_EQ(results[2], summed);
  }
}

// The compiler's temporary memory of values and gradients on each device, 256 tokens at hand.
int64_t TempBytes(int64_t devices, Way way) {
  const Case c{.heads = {4, 4, 32}, .length = 256 * devices, .blocks = {64, 64}};
  const xla::Mesh mesh = ContextMesh(devices);
  xla::Graph graph("memory");
  Values xs;
  for (int i = 0; i < 4; ++i) xs.push_back(graph.Parameter({DType::kF32, {1, c.length, 128}}, "x"));
  for (int i = 0; i < 2; ++i) xs.push_back(graph.Parameter({DType::kS32, {1, c.length}}, "s"));
  const std::vector<PartitionSpec> in(6, PartitionSpec{{}, xla::kContextAxis});
  const std::vector<PartitionSpec> out(4, PartitionSpec{{}, xla::kContextAxis});
  const Values results = xla::ShardMap(
      mesh, in, out,
      [&](std::span<const Value> own) { return Attend(c, Parallel(true), way, own); }, xs);
  const xla::Program program = graph.Finish(results).value();
  return xla::MeshTestClient().Compile(program).value()->memory().value().temp_bytes;
}

TEST(RingAttention, MemoryDoesNotGrowWithTheDevicesThatShareARow) {
  const int64_t ring2 = TempBytes(2, Way::kRing), ring8 = TempBytes(8, Way::kRing);
  const int64_t gather2 = TempBytes(2, Way::kGathered), gather8 = TempBytes(8, Way::kGathered);
  EXPECT_LT(static_cast<double>(ring8), 1.1 * static_cast<double>(ring2));
  EXPECT_GT(static_cast<double>(gather8), 1.5 * static_cast<double>(gather2));
  EXPECT_LT(ring8, gather8);
  RecordProperty("bytes", std::to_string(ring2) + " " + std::to_string(ring8) + " " +
                              std::to_string(gather2) + " " + std::to_string(gather8));
}

TEST(RingAttention, TheRuleAsksWhetherAStepHidesItsMessage) {
  EXPECT_TRUE(RingHides(4096, 8, 2));   // Llama 3 70B, 32k tokens over 8 chips
  EXPECT_FALSE(RingHides(512, 8, 2));   // 4k tokens over 8 chips
  EXPECT_FALSE(RingHides(4096, 1, 2));  // as many keys as queries
}

}  // namespace
}  // namespace forebay::models
