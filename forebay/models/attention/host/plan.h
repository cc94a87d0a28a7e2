// Plan: which blocks of queries meet which blocks of keys. Private to models/.
//
// Blocks are cut along segments, so that no token of one segment is ever compared with one of
// another, and padding is in no block. The cost is the sum of squares of the segments' lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/models/attention/host/problem.h"

namespace forebay::models::attention::host {

struct PlanInput {
  int64_t rows;
  std::span<const int32_t> query_segments;  // [rows, T]
  std::span<const int32_t> query_places;    // [T]: of each query in its row of keys, rising
  std::span<const int32_t> key_segments;    // [rows, R]; the place of a key is its index
  int32_t window;
  int32_t queries_max;  // of a block
};

// Tokens in no block, or that meet none: their results are zero.
struct Gap {
  int32_t token, count;
};

struct Plan {
  std::vector<Block> query_blocks, key_blocks;
  std::vector<Gap> query_gaps, key_gaps;
};

// Any order of segments is right; a segment that lies in few runs is fast. Blocks of one segment of
// one row stand side by side, in rising order of places.
Plan MakePlan(const PlanInput& input);

}  // namespace forebay::models::attention::host
