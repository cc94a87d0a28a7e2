// RowSplit: how the tokens of a row lie over the axis "context".
//
// A batch comes split into equal runs of tokens, one a device. A causal token looks at all before
// it, so the device with the last run would have almost twice the mean work and the others would
// wait. So rows are dealt: cut into two chunks a device, of which device i takes chunk i and chunk
// 2c - 1 - i of c devices. Then each pair of devices has two full chunks of queries against chunks
// of keys to compute, whichever they are (for one segment a row; short segments are even anyhow).
// Rows whose part is an odd number of tokens stay as they come.
//
// Legend: B rows, T tokens of a row at hand, R = T * devices tokens of a whole row.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/models/parallel.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

class RowSplit {
 public:
  RowSplit() = default;  // one device, no tokens
  // `length`: T. In the body of a ShardMap where `parallel` is on; else one device has all.
  RowSplit(xla::Graph& graph, const Parallel& parallel, int64_t length);

  int64_t devices() const { return devices_; }
  int64_t chunks() const { return chunks_; }  // at hand, in rising order of their places
  int64_t chunk_length() const { return length_ / chunks_; }
  int64_t length() const { return length_; }
  int64_t row_length() const { return length_ * devices_; }

  // [B, T, ...] as a batch has it -> as it is dealt, and back. Two messages of half the size.
  xla::Value Deal(xla::Value x) const;
  xla::Value Collect(xla::Value x) const;

  // [B, T, ...] dealt -> the whole row in its own order, [B, R, ...]. And the transpose: terms of
  // whole rows -> the sum over the devices of the tokens at hand.
  xla::Value Gather(xla::Value x) const;
  xla::Value Scatter(xla::Value x) const;

  // Around the ring: what the device before this one has.
  xla::Value Shift(xla::Value x) const;
  // Places in their row of the first tokens of the chunks that the device `back` steps before this
  // one has (s32 scalars).
  std::vector<xla::Value> Starts(xla::Graph& graph, int64_t back) const;

 private:
  bool dealt() const { return chunks_ > 1; }
  xla::Value Swap(xla::Value x, bool back) const;

  int64_t devices_ = 1, chunks_ = 1, length_ = 0;
};

}  // namespace forebay::models
