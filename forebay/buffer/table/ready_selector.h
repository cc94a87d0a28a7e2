// ReadySelector: draws ready groups by chance.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/buffer/table/chunked_array.h"

namespace forebay::buffer {

// A dense array of group indexes, with sums of their weights above it. The owner keeps each group's
// place. Costs 8 bytes a group. Not thread-safe.
class ReadySelector {
 public:
  uint32_t size() const { return groups_.size(); }
  // Gives its place.
  uint32_t Add(uint32_t group, float weight);
  // Gives the group that was moved to `place` from the end, or kNone.
  uint32_t Remove(uint32_t place);
  // There must be one.
  uint32_t DrawUniform(Rng& rng) const {
    return groups_[static_cast<uint32_t>(rng.Below(groups_.size()))];
  }
  // In proportion to the weights; uniform when all are zero.
  uint32_t DrawWeighted(Rng& rng) const;

  static constexpr uint32_t kNone = 0xffffffff;
  int64_t memory_bytes() const;

 private:
  static constexpr uint32_t kWays = 16;

  void Update(uint32_t place);  // the sums above it

  ChunkedArray<uint32_t> groups_;
  ChunkedArray<float> weights_;
  // sums_[0][i]: of weights 16 i to 16 i + 15; sums_[1][i]: of 16 of those; ... up to one number.
  // Computed anew from below each time: no rounding errors pile up.
  std::vector<ChunkedArray<double>> sums_;
};

}  // namespace forebay::buffer
