// SegmentUse: how much of each segment of the log is still needed.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/buffer/table/chunked_array.h"
#include "forebay/buffer/table/flat_index.h"

namespace forebay::buffer {

struct SegmentLive {
  uint32_t segment = 0;
  uint32_t records = 0;  // that are pending or retained
  int64_t bytes = 0;     // of their payloads
  friend bool operator==(const SegmentLive&, const SegmentLive&) = default;
};

// Not thread-safe. Remembers segments with a record only.
class SegmentUse {
 public:
  void Enter(uint32_t segment, uint32_t bytes);
  void Leave(uint32_t segment, uint32_t bytes);
  SegmentLive Of(uint32_t segment) const;
  // The one with the fewest bytes first, ties by segment.
  std::vector<SegmentLive> ByBytes() const;
  int64_t memory_bytes() const { return uses_.memory_bytes() + by_segment_.memory_bytes(); }

 private:
  uint32_t Find(uint32_t segment) const;

  ChunkedArray<SegmentLive> uses_;  // dense
  FlatIndex by_segment_;
  uint32_t last_ = 0;  // that was looked for
};

}  // namespace forebay::buffer
