#include "forebay/buffer/table/segment_use.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/buffer/table/flat_index.h"

namespace forebay::buffer {

uint32_t SegmentUse::Find(uint32_t segment) const {
  if (last_ < uses_.size() && uses_[last_].segment == segment) return last_;
  return by_segment_.Find(segment, [this](uint32_t i) { return int64_t{uses_[i].segment}; });
}

void SegmentUse::Enter(uint32_t segment, uint32_t bytes) {
  uint32_t i = Find(segment);
  if (i == FlatIndex::kNone) {
    i = uses_.size();
    uses_.PushBack({.segment = segment});
    by_segment_.Insert(segment, i, [this](uint32_t k) { return int64_t{uses_[k].segment}; });
  }
  last_ = i;
  ++uses_[i].records;
  uses_[i].bytes += bytes;
}

void SegmentUse::Leave(uint32_t segment, uint32_t bytes) {
  const uint32_t i = Find(segment);
  FB_CHECK(i != FlatIndex::kNone && uses_[i].bytes >= bytes,
           "a segment gave up more trajectories than it holds");
  last_ = i;
  uses_[i].bytes -= bytes;
  if (--uses_[i].records > 0) return;
  const auto key_of = [this](uint32_t k) { return int64_t{uses_[k].segment}; };
  by_segment_.Erase(segment, key_of);
  const uint32_t end = uses_.size() - 1;
  if (i != end) {
    by_segment_.Erase(uses_[end].segment, key_of);
    uses_[i] = uses_[end];
    by_segment_.Insert(uses_[i].segment, i, key_of);
  }
  uses_.PopBack();
}

SegmentLive SegmentUse::Of(uint32_t segment) const {
  const uint32_t i = Find(segment);
  return i == FlatIndex::kNone ? SegmentLive{.segment = segment} : uses_[i];
}

std::vector<SegmentLive> SegmentUse::ByBytes() const {
  std::vector<SegmentLive> uses;
  uses.reserve(uses_.size());
  for (uint32_t i = 0; i < uses_.size(); ++i) uses.push_back(uses_[i]);
  std::ranges::sort(uses, [](const SegmentLive& a, const SegmentLive& b) {
    return std::tie(a.bytes, a.segment) < std::tie(b.bytes, b.segment);
  });
  return uses;
}

}  // namespace forebay::buffer
