#include "forebay/buffer/table/ready_selector.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "forebay/base/rng.h"
#include "forebay/buffer/table/chunked_array.h"

namespace forebay::buffer {
namespace {

template <typename T>
double SumOf(const ChunkedArray<T>& values, uint32_t first, uint32_t end) {
  double sum = 0;
  for (uint32_t i = first; i < end; ++i) sum += static_cast<double>(values[i]);
  return sum;
}

// The child of [first, end) in which `at` falls; `at` becomes relative to it. Rounding never leads
// to a child without weight.
template <typename T>
uint32_t Descend(const ChunkedArray<T>& values, uint32_t first, uint32_t end, double& at) {
  uint32_t last = first;
  for (uint32_t i = first; i < end; ++i) {
    const auto value = static_cast<double>(values[i]);
    if (value <= 0) continue;
    last = i;
    if (at < value) return i;
    at -= value;
  }
  at = 0;
  return last;
}

}  // namespace

uint32_t ReadySelector::Add(uint32_t group, float weight) {
  const uint32_t place = groups_.size();
  groups_.PushBack(group);
  weights_.PushBack(weight);
  Update(place);
  return place;
}

uint32_t ReadySelector::Remove(uint32_t place) {
  const uint32_t end = groups_.size() - 1;
  const uint32_t moved = place == end ? kNone : groups_.Back();
  groups_[place] = groups_.Back();
  weights_[place] = weights_.Back();
  weights_[end] = 0;
  Update(end);
  groups_.PopBack();
  weights_.PopBack();
  if (moved != kNone) Update(place);
  return moved;
}

void ReadySelector::Update(uint32_t place) {
  uint32_t size = weights_.size();
  for (size_t level = 0;; ++level) {
    const uint32_t above = place / kWays;
    const uint32_t above_size = (size + kWays - 1) / kWays;
    if (level == sums_.size()) {
      // A new level: all of it, once in 16 times as many groups.
      sums_.emplace_back();
      for (uint32_t i = 0; i < above_size; ++i) {
        const uint32_t end = std::min((i + 1) * kWays, size);
        sums_[level].PushBack(level == 0 ? SumOf(weights_, i * kWays, end)
                                         : SumOf(sums_[level - 1], i * kWays, end));
      }
    }
    ChunkedArray<double>& sums = sums_[level];
    if (above >= sums.size()) sums.Resize(above + 1);
    const uint32_t end = std::min((above + 1) * kWays, size);
    sums[above] = level == 0 ? SumOf(weights_, above * kWays, end)
                             : SumOf(sums_[level - 1], above * kWays, end);
    if (sums.size() == 1) return;
    place = above;
    size = sums.size();
  }
}

uint32_t ReadySelector::DrawWeighted(Rng& rng) const {
  const double total = sums_.back()[0];
  if (!(total > 0)) return DrawUniform(rng);
  double at = rng.Uniform() * total;
  uint32_t i = 0;
  for (size_t level = sums_.size(); level-- > 0;) {
    const uint32_t first = i * kWays;
    if (level == 0) {
      i = Descend(weights_, first, std::min(first + kWays, weights_.size()), at);
    } else {
      const ChunkedArray<double>& below = sums_[level - 1];
      i = Descend(below, first, std::min(first + kWays, below.size()), at);
    }
  }
  return groups_[i];
}

int64_t ReadySelector::memory_bytes() const {
  int64_t bytes = groups_.memory_bytes() + weights_.memory_bytes();
  for (const auto& level : sums_) bytes += level.memory_bytes();
  return bytes;
}

}  // namespace forebay::buffer
