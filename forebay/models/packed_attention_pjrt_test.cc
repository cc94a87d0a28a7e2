// All forms of packed attention equal plain attention, values and gradients, on random rows:
// segments in any order, padding anywhere, windows, soft caps, group sizes and block sizes that
// divide nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/packed_attention.h"
#include "forebay/models/program_testing.h"
#include "forebay/models/rope.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using ::testing::HasSubstr;
using xla::Comparison;
using xla::DType;
using xla::Value;
using xla::Values;

struct Row {
  HeadShape heads{};
  int64_t rows = 1, length = 0;
  std::vector<int32_t> segments;
  int32_t window = 0;  // 0: none
  double softcap = 0;
  AttentionBlocks blocks;
  DType dtype = DType::kF32;

  int64_t tokens() const { return rows * length; }
  int64_t query_width() const { return heads.query_heads * heads.head_dim; }
  int64_t kv_width() const { return heads.kv_heads * heads.head_dim; }
};

struct Data {
  std::vector<float> query, key, value, cotangent;
};

std::vector<float> Normal(Rng& rng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

Data RandomData(Rng& rng, const Row& row) {
  return {Normal(rng, row.tokens() * row.query_width()), Normal(rng, row.tokens() * row.kv_width()),
          Normal(rng, row.tokens() * row.kv_width()),
          Normal(rng, row.tokens() * row.query_width())};
}

// Attention as the books have it, differentiated op by op.
Value Plain(Value query, Value key, Value value, Value segments, const RopeTables& rope,
            const Row& row, Value window) {
  xla::Graph& graph = *query.graph();
  const HeadShape& h = row.heads;
  const auto split = [&](Value x, int64_t count, bool rotate) {
    Value x_NAH = xla::Reshape(x, {row.tokens(), count, h.head_dim});
    if (rotate) x_NAH = ApplyRope(x_NAH, rope);
    return xla::Transpose(xla::Reshape(x_NAH, {row.rows, row.length, count, h.head_dim}),
                          {0, 2, 1, 3});
  };
  const auto repeat = [&](Value x_BKTH) {
    const Value many = xla::BroadcastTo(xla::ExpandDims(x_BKTH, 2),
                                        {row.rows, h.kv_heads, h.group(), row.length, h.head_dim});
    return xla::Reshape(many, {row.rows, h.query_heads, row.length, h.head_dim});
  };
  const Value q = split(query, h.query_heads, true);
  const Value k = repeat(split(key, h.kv_heads, true));
  const Value v = repeat(split(value, h.kv_heads, false));
  Value scores = xla::MatMul(q, xla::Transpose(k, {0, 1, 3, 2})) *
                 (1 / std::sqrt(static_cast<double>(h.head_dim)));
  if (row.softcap > 0) scores = xla::Tanh(scores / row.softcap) * row.softcap;
  const xla::Shape square{DType::kS32, {1, 1, row.length, row.length}};
  const Value distance = xla::Iota(graph, square, 2) - xla::Iota(graph, square, 3);
  const Value same =
      xla::Compare(xla::Reshape(segments, {row.rows, 1, row.length, 1}),
                   xla::Reshape(segments, {row.rows, 1, 1, row.length}), Comparison::kEq);
  Value visible =
      xla::And(same, xla::Compare(distance, xla::Constant(graph, 0, DType::kS32), Comparison::kGe));
  if (!window.empty()) {
    visible = xla::And(visible, xla::Compare(distance, window, Comparison::kLt));
  }
  const Value masked = xla::Select(visible, scores, xla::Constant(graph, -1e9, DType::kF32));
  const Value mixed = xla::MatMul(xla::Softmax(masked, -1), v);
  return xla::Reshape(xla::Transpose(mixed, {0, 2, 1, 3}), {row.tokens(), row.query_width()});
}

enum class Form { kPlain, kSquare, kBlocks, kHost };

AttentionForm ToAttention(Form form) {
  return form == Form::kSquare   ? AttentionForm::kSquare
         : form == Form::kBlocks ? AttentionForm::kBlocks
                                 : AttentionForm::kHost;
}

// Attended, d(query), d(key), d(value), under the cotangent; zero at padding.
std::vector<std::vector<float>> Evaluate(const Row& row, const Data& data, Form form) {
  TestProgram program("attention");
  const int64_t n = row.tokens();
  Values in = {program.Input(F32({n, row.query_width()}, data.query)),
               program.Input(F32({n, row.kv_width()}, data.key)),
               program.Input(F32({n, row.kv_width()}, data.value))};
  const Value cotangent = program.Input(F32({n, row.query_width()}, data.cotangent));
  const Value segments = program.Input(S32({row.rows, row.length}, row.segments));
  const Value window = row.window > 0 ? program.Input(S32({}, {row.window})) : Value();
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < n; ++i) positions.push_back(static_cast<int32_t>(i % row.length));
  Rotation rotation;
  for (int64_t i = 0; i < row.heads.head_dim / 2; ++i) {
    rotation.frequencies.push_back(
        static_cast<float>(std::pow(100.0, -static_cast<double>(i) / 4)));
  }
  const RopeTables rope = MakeRopeTables(program.Input(S32({n}, positions)), rotation);
  Values wide = in;
  for (Value& x : wide) x = xla::Convert(x, row.dtype);
  Value out;
  if (form == Form::kPlain) {
    out = Plain(in[0], in[1], in[2], segments, rope, row, window);
  } else {
    const RowMask mask = MakeRowMask(segments, ToAttention(form), row.blocks);
    out = PackedAttention(wide[0], wide[1], wide[2], mask, rope, row.heads,
                          {.softcap = row.softcap, .window = window});
  }
  const Value real = xla::Reshape(
      xla::Compare(segments, xla::Constant(program.graph(), 0, DType::kS32), Comparison::kNe),
      {n, 1});
  const auto at_real = [&](Value x) {
    return xla::Select(real, x, xla::Constant(program.graph(), 0, x.dtype()));
  };
  // The plain form needs a cotangent without padding; ours must cope with one that has it.
  const Value sent = form == Form::kPlain ? at_real(cotangent) : xla::Convert(cotangent, row.dtype);
  Values results = {xla::Convert(at_real(out), DType::kF32)};
  for (const Value& d : xla::Vjp(Values{out}, Values{sent}, in)) results.push_back(d);
  return program.Run(results);
}

// Runs of segments with rising, random or repeated ids and with padding between them.
std::vector<int32_t> RandomSegments(Rng& rng, int64_t length, bool rising) {
  std::vector<int32_t> segments;
  int32_t next = 1;
  while (static_cast<int64_t>(segments.size()) < length) {
    const auto run = static_cast<int64_t>(1 + rng.Below(static_cast<uint64_t>(length) / 2 + 1));
    const bool padding = rng.Below(4) == 0;
    const auto random = static_cast<int32_t>(1 + rng.Below(3));
    const int32_t id = padding ? 0 : rising ? next++ : random;
    for (int64_t i = 0; i < run && static_cast<int64_t>(segments.size()) < length; ++i) {
      segments.push_back(id);
    }
  }
  return segments;
}

// Other segments (and another window) for the same program.
void DrawSegments(Rng& rng, Row* row) {
  if (row->window > 0) row->window = static_cast<int32_t>(1 + rng.Below(20));
  row->segments.clear();
  const bool rising = rng.Below(3) > 0;
  for (int64_t b = 0; b < row->rows; ++b) {
    const std::vector<int32_t> ids = RandomSegments(rng, row->length, rising);
    row->segments.insert(row->segments.end(), ids.begin(), ids.end());
  }
}

Row RandomRow(Rng& rng) {
  Row row;
  const auto pick = [&](std::initializer_list<int64_t> from) {
    return *(from.begin() + rng.Below(from.size()));
  };
  row.heads.kv_heads = pick({1, 2});
  row.heads.query_heads = row.heads.kv_heads * pick({1, 2, 3});
  row.heads.head_dim = pick({4, 8});
  row.rows = pick({1, 2, 3});
  row.length = pick({1, 7, 16, 33, 50, 64});
  row.blocks = {.queries = pick({4, 8, 16, 24}), .keys = pick({4, 8, 16, 24})};
  row.window = rng.Below(2) == 0 ? 1 : 0;
  if (rng.Below(3) == 0) row.softcap = 1.5;
  DrawSegments(rng, &row);
  return row;
}

std::string Describe(const Row& row) {
  std::string text =
      "A " + std::to_string(row.heads.query_heads) + " K " + std::to_string(row.heads.kv_heads) +
      " H " + std::to_string(row.heads.head_dim) + " rows " + std::to_string(row.rows) +
      " window " + std::to_string(row.window) + " cap " + std::to_string(row.softcap) + " blocks " +
      std::to_string(row.blocks.queries) + " x " + std::to_string(row.blocks.keys) + " segments";
  for (const int32_t id : row.segments) text += " " + std::to_string(id);
  return text;
}

void ExpectClose(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT(MaxDifference(got[i], expected[i]), tolerance * (1 + MaxMagnitude(expected[i])))
        << "result " << i;
  }
}

// Draws of one program's segments share its compilation.
TEST(PackedAttention, EveryFormEqualsPlainAttentionOnRandomRows) {
  for (uint64_t seed = 0; seed < 14; ++seed) {
    Rng rng(seed);
    Row row = RandomRow(rng);
    for (int draw = 0; draw < 5; ++draw) {
      DrawSegments(rng, &row);
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + Describe(row));
      const Data data = RandomData(rng, row);
      const auto expected = Evaluate(row, data, Form::kPlain);
      ExpectClose(Evaluate(row, data, Form::kBlocks), expected, 2e-5);
      ExpectClose(Evaluate(row, data, Form::kSquare), expected, 2e-5);
      ExpectClose(Evaluate(row, data, Form::kHost), expected, 2e-5);
    }
  }
}

// A block of keys that were looked at would send its NaN on, as 0 * NaN: so none was.
TEST(PackedAttention, BlocksThatNoSegmentNeedsAreSkipped) {
  Rng rng(9);
  Row row{.heads = {2, 1, 4}, .length = 64, .blocks = {.queries = 8, .keys = 8}};
  for (int32_t i = 0; i < 64; ++i) row.segments.push_back(i < 32 ? 1 : 2);
  const Data clean = RandomData(rng, row);
  Data dirty = clean;
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < size_t{32 * 4}; ++i) dirty.key[i] = dirty.value[i] = nan;
  const auto second_half = [](std::vector<float> values) {
    values.erase(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2);
    return values;
  };
  const auto before = Evaluate(row, clean, Form::kBlocks);
  const auto after = Evaluate(row, dirty, Form::kBlocks);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(second_half(before[i]), second_half(after[i])) << "result " << i;
  }
  // The same for what lies before a window: tokens of the last block see the block before it, at
  // most.
  row.segments.assign(64, 1);
  row.window = 9;
  for (size_t i = 0; i < size_t{48 * 4}; ++i) dirty.key[i] = dirty.value[i] = nan;
  const std::vector<float> attended = Evaluate(row, dirty, Form::kBlocks)[0];
  const std::vector<float> expected = Evaluate(row, clean, Form::kBlocks)[0];
  for (size_t i = size_t{56 * 8}; i < attended.size(); ++i)
    ASSERT_EQ(attended[i], expected[i]) << i;
}

TEST(PackedAttention, N3_NanAtPaddingChangesNothing) {
  for (uint64_t seed = 100; seed < 105; ++seed) {
    Rng rng(seed);
    const Row row = RandomRow(rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + Describe(row));
    const Data clean = RandomData(rng, row);
    Data dirty = clean;
    const auto poison = [&](std::vector<float>& values) {
      const size_t width = values.size() / row.segments.size();
      for (size_t i = 0; i < values.size(); ++i) {
        if (row.segments[i / width] != 0) continue;
        values[i] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                               : std::numeric_limits<float>::infinity();
      }
    };
    for (std::vector<float>* part : {&dirty.query, &dirty.key, &dirty.value, &dirty.cotangent}) {
      poison(*part);
    }
    for (const Form form : {Form::kSquare, Form::kBlocks, Form::kHost}) {
      EXPECT_EQ(Evaluate(row, clean, form), Evaluate(row, dirty, form));
    }
  }
}

// Large scores: the online softmax must neither overflow nor lose the peak.
TEST(PackedAttention, LargeScoresStayFinite) {
  Rng rng(7);
  Row row{.heads = {2, 1, 8}, .length = 40, .blocks = {.queries = 8, .keys = 8}};
  row.segments.assign(40, 1);
  Data data = RandomData(rng, row);
  for (float& x : data.query) x *= 60;
  for (float& x : data.key) x *= 60;
  const auto expected = Evaluate(row, data, Form::kPlain);
  for (const Form form : {Form::kBlocks, Form::kHost}) {
    const auto got = Evaluate(row, data, form);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT(MaxDifference(got[i], expected[i]), 1e-3 * (1 + MaxMagnitude(expected[i]))) << i;
    }
  }
}

TEST(PackedAttention, Bf16InputsAccumulateInF32) {
  Rng rng(8);
  Row row{.heads = {4, 2, 8}, .length = 64, .blocks = {.queries = 16, .keys = 16}};
  for (int32_t i = 0; i < 64; ++i) row.segments.push_back(1 + i / 30);
  const Data data = RandomData(rng, row);
  const auto expected = Evaluate(row, data, Form::kPlain);
  row.dtype = DType::kBF16;
  for (const Form form : {Form::kSquare, Form::kBlocks, Form::kHost}) {
    ExpectClose(Evaluate(row, data, form), expected, 0.02);
  }
}

// Heads whose size is no whole number of vectors, or many; blocks of queries and keys that are not
// full, and segments over several of them; windows that end between blocks.
TEST(PackedAttention, HostEqualsPlainAttentionForEveryHeadSize) {
  for (const int64_t head_dim : {2, 6, 32, 64, 80, 96, 128, 256, 258}) {
    for (const bool window : {false, true}) {
      Rng rng(static_cast<uint64_t>(head_dim));
      Row row{.heads = {3, 1, head_dim}, .rows = 2, .length = 200};
      if (window) row.window = 90;
      if (head_dim == 96) row.softcap = 2;
      for (int32_t i = 0; i < 400; ++i) {
        row.segments.push_back(i < 150 ? 1 : i < 163 ? 0 : i < 190 ? 2 : i < 201 ? 0 : 3);
      }
      SCOPED_TRACE(Describe(row));
      const Data data = RandomData(rng, row);
      ExpectClose(Evaluate(row, data, Form::kHost), Evaluate(row, data, Form::kPlain), 2e-5);
    }
  }
}

// The order in which threads add must not show.
TEST(PackedAttention, HostGivesTheSameBitsEachTime) {
  Rng rng(4);
  Row row{.heads = {6, 2, 32}, .length = 1500};
  for (int32_t i = 0; i < 1500; ++i) row.segments.push_back(i < 1100 ? 1 : 2);
  const Data data = RandomData(rng, row);
  const auto first = Evaluate(row, data, Form::kHost);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Evaluate(row, data, Form::kHost), first);
}

TEST(PackedAttention, RowsAreHostWhereHostKernelsRunElseShortOnesSquareAndLongOnesBlocks) {
  xla::Graph graph("mask");
  const Value small = graph.Parameter({DType::kS32, {2, 128}}, "s");
  const Value large = graph.Parameter({DType::kS32, {2, 8192}}, "l");
  EXPECT_EQ(MakeRowMask(small).form, AttentionForm::kSquare);
  EXPECT_EQ(MakeRowMask(large).form, AttentionForm::kBlocks);
  EXPECT_EQ(MakeRowMask(small, AttentionForm::kBlocks).form, AttentionForm::kBlocks);
  for (const Value& segments : {small, large}) {
    const RowPlacement placement{.host_kernels = true};
    EXPECT_EQ(MakeRowMask(segments, AttentionForm::kAuto, {}, placement).form,
              AttentionForm::kHost);
  }
  EXPECT_TRUE(graph.status().ok()) << graph.status().ToString();
}

TEST(PackedAttention, RefusesShapesThatDoNotFit) {
  const auto error = [](const xla::Shape& wide, const xla::Shape& angles, const xla::Shape& window,
                        const HeadShape& heads) {
    xla::Graph graph("bad");
    const Value x = graph.Parameter(wide, "x"), table = graph.Parameter(angles, "t");
    const RowMask mask =
        MakeRowMask(graph.Parameter({DType::kS32, {1, 16}}, "s"), AttentionForm::kHost);
    PackedAttention(x, x, x, mask, {table, table}, heads, {.window = graph.Parameter(window, "w")});
    return graph.status().message();
  };
  const xla::Shape wide{DType::kF32, {16, 24}}, angles{DType::kF32, {16, 4}}, window{DType::kS32};
  EXPECT_EQ(error(wide, angles, window, {3, 3, 8}), "");
  EXPECT_THAT(error(wide, angles, window, {3, 2, 8}),
              HasSubstr("PackedAttention: query f32[16,24]"));
  EXPECT_THAT(error(wide, {DType::kF32, {16, 8}}, window, {3, 3, 8}),
              HasSubstr("PackedAttention: angles f32[16,8] and f32[16,8] for 1 rows of 16 tokens"));
  EXPECT_THAT(error({DType::kF32, {16, 21}}, {DType::kF32, {16, 3}}, window, {3, 3, 7}),
              HasSubstr("with heads of 7"));
  EXPECT_THAT(error(wide, angles, {DType::kS32, {2}}, {3, 3, 8}),
              HasSubstr("PackedAttention: the window is s32[2], not an s32 scalar"));
}

}  // namespace
}  // namespace forebay::models
