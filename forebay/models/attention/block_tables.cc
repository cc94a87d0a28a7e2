#include "forebay/models/attention/block_tables.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "forebay/models/packed_attention.h"
#include "forebay/models/row_split.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models::attention {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Value;
using xla::Values;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

Value Number(xla::Graph& graph, int64_t value) {
  return xla::Constant(graph, static_cast<double>(value), DType::kS32);
}

// Segments and places of one side's blocks.
struct Side {
  Value segments_Bkn;
  Value places_k;
};

// `chunks`: the segments [B, L] of each chunk; `starts`: their places.
Side MakeSide(const Values& chunks, const std::vector<Value>& starts, int64_t block) {
  xla::Graph& graph = *chunks[0].graph();
  Values segments, places;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t length = chunks[i].dim(1), count = CeilDiv(length, block);
    const Value padded =
        count * block == length ? chunks[i] : xla::Pad(chunks[i], 1, 0, count * block - length, 0);
    segments.push_back(xla::Reshape(padded, {chunks[i].dim(0), count, block}));
    places.push_back(xla::Iota(graph, {DType::kS32, {count}}, 0) * static_cast<double>(block) +
                     starts[i]);
  }
  return {xla::Concatenate(segments, 1), xla::Concatenate(places, 0)};
}

// The smallest and largest segment of each block, padding left out.
struct Range {
  Value low_Bk, high_Bk;
};
Range RangeOf(Value segments_Bkn) {
  xla::Graph& graph = *segments_Bkn.graph();
  const Value real = xla::Compare(segments_Bkn, Number(graph, 0), Comparison::kNe);
  const auto other = [&](int32_t value) {
    return xla::Select(real, segments_Bkn, Number(graph, value));
  };
  return {xla::ReduceMin(other(std::numeric_limits<int32_t>::max()), {-1}),
          xla::ReduceMax(other(std::numeric_limits<int32_t>::min()), {-1})};
}

// First and last block of keys, [B * query blocks] each.
struct Bounds {
  Value first, last;
};
Bounds BoundsOf(const Side& queries, const Side& keys, int64_t block) {
  xla::Graph& graph = *queries.places_k.graph();
  const Range query = RangeOf(queries.segments_Bkn), key = RangeOf(keys.segments_Bkn);
  const auto pairs = [](Value q, Value k, int axis, Comparison how) {
    return xla::Compare(xla::ExpandDims(q, axis + 1), xla::ExpandDims(k, axis), how);
  };
  const Value meet_BIJ = xla::And(pairs(query.low_Bk, key.high_Bk, 1, Comparison::kLe),
                                  pairs(query.high_Bk, key.low_Bk, 1, Comparison::kGe));
  const Value ends = queries.places_k + static_cast<double>(block - 1);
  const Value past_BIJ = xla::ExpandDims(pairs(ends, keys.places_k, 0, Comparison::kGe), 0);
  const Value index = xla::Iota(graph, {DType::kS32, {1, 1, keys.places_k.dim(0)}}, 2);
  const Value none = Number(graph, std::numeric_limits<int32_t>::max());
  const Value first = xla::ReduceMin(xla::Select(meet_BIJ, index, none), {-1});
  const Value last =
      xla::ReduceMax(xla::Select(xla::And(meet_BIJ, past_BIJ), index, Number(graph, -1)), {-1});
  return {xla::Reshape(first, {-1}), xla::Reshape(last, {-1})};
}

}  // namespace

BlockCounts CountBlocks(const RowSplit& split, bool ring, const AttentionBlocks& blocks) {
  const int64_t key_chunks = ring ? split.chunks() : 1;
  const int64_t key_length = ring ? split.chunk_length() : split.row_length();
  return {.steps = ring ? split.devices() : 1,
          .query_blocks = split.chunks() * CeilDiv(split.chunk_length(), blocks.queries),
          .key_blocks = key_chunks * CeilDiv(key_length, blocks.keys),
          .key_chunks = key_chunks,
          .key_chunk_length = key_length};
}

Values BlockTables(Value segments_BT, const RowSplit& split, bool ring,
                   const AttentionBlocks& blocks) {
  xla::Graph& graph = *segments_BT.graph();
  const BlockCounts counts = CountBlocks(split, ring, blocks);
  const int64_t rows = segments_BT.dim(0);
  Values own;
  for (int64_t i = 0; i < split.chunks(); ++i) {
    own.push_back(
        xla::Slice(segments_BT, 1, i * split.chunk_length(), (i + 1) * split.chunk_length()));
  }
  const Side queries = MakeSide(own, split.Starts(graph, 0), blocks.queries);
  const Value whole_BR = split.Gather(segments_BT);
  Values first, last, key_places, key_segments;
  for (int64_t step = 0; step < counts.steps; ++step) {
    Values chunks = {whole_BR};
    std::vector<Value> starts = {Number(graph, 0)};
    if (ring) {
      starts = split.Starts(graph, step);
      chunks.clear();
      for (const Value& start : starts) {
        chunks.push_back(xla::DynamicSlice(whole_BR, Values{Number(graph, 0), start},
                                           {rows, counts.key_chunk_length}));
      }
    }
    const Side keys = MakeSide(chunks, starts, blocks.keys);
    const Bounds bounds = BoundsOf(queries, keys, blocks.queries);
    first.push_back(xla::ExpandDims(bounds.first, 0));
    last.push_back(xla::ExpandDims(bounds.last, 0));
    key_places.push_back(xla::ExpandDims(keys.places_k, 0));
    key_segments.push_back(
        xla::Reshape(keys.segments_Bkn, {1, rows * counts.key_blocks, blocks.keys}));
  }
  const Value places_BI = xla::BroadcastTo(queries.places_k, {rows, counts.query_blocks});
  return {xla::Concatenate(first, 0),      xla::Concatenate(last, 0),
          xla::Reshape(places_BI, {-1}),   xla::Reshape(queries.segments_Bkn, {-1, blocks.queries}),
          xla::Concatenate(key_places, 0), xla::Concatenate(key_segments, 0)};
}

}  // namespace forebay::models::attention
