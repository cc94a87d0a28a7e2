// Packing: which sequences share which row.
//
// Pure and deterministic. Every token of every sequence is kept: a sequence's packed length is its
// number of tokens, never its number of loss tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::learner {

// One sequence in a row.
struct Placement {
  int32_t sequence = 0;  // index into the lengths
  int32_t begin = 0;     // its first token's column
  friend bool operator==(const Placement&, const Placement&) = default;
};

using Row = std::vector<Placement>;  // left to right; the k-th is segment k + 1

// Best-fit decreasing: the longest first, each into the fullest row that still has room (ties: the
// earliest row; equal lengths in the order given). Rows of `row_tokens` columns. kInvalidArgument
// names a sequence that is empty or longer than a row.
Result<std::vector<Row>> PackRows(std::span<const int64_t> lengths, int64_t row_tokens);

}  // namespace forebay::learner
