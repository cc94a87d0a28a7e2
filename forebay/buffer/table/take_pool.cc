#include "forebay/buffer/table/take_pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"

namespace forebay::buffer {
namespace {
constexpr int64_t PlaceOf(int64_t take_id) { return take_id & (TakePool::kTakesMax - 1); }
}  // namespace

TakeState& TakePool::Add(TimePoint expires) {
  int64_t place = std::ssize(takes_);
  if (!free_.empty()) {
    place = free_.back();
    free_.pop_back();
  } else {
    takes_.emplace_back();
  }
  TakeState& take = takes_[static_cast<size_t>(place)];
  take.take_id = (next_serial_++ << kPlaceBits) | place;
  take.expires = expires;
  ++live_;
  // Takes that ended long before their time must not pile up.
  if (std::ssize(queue_) > 2 * live_ + 64) {
    std::erase_if(queue_, [this](const Deadline& d) { return Find(d.second) == nullptr; });
    std::ranges::make_heap(queue_, std::greater<>());
  }
  queue_.emplace_back(expires, take.take_id);
  std::ranges::push_heap(queue_, std::greater<>());
  return take;
}

const TakeState* TakePool::Find(int64_t take_id) const {
  if (take_id <= 0) return nullptr;
  const auto place = static_cast<size_t>(PlaceOf(take_id));
  if (place >= takes_.size() || takes_[place].take_id != take_id) return nullptr;
  return &takes_[place];
}

void TakePool::Remove(int64_t take_id, std::vector<int64_t>& groups) {
  const int64_t place = PlaceOf(take_id);
  TakeState& take = takes_[static_cast<size_t>(place)];
  groups.clear();
  groups.swap(take.groups);
  take.take_id = 0;
  free_.push_back(static_cast<uint32_t>(place));
  --live_;
}

void TakePool::DropEnded() {
  while (!queue_.empty() && Find(queue_.front().second) == nullptr) {
    std::ranges::pop_heap(queue_, std::greater<>());
    queue_.pop_back();
  }
}

std::optional<TimePoint> TakePool::NextExpiry() {
  DropEnded();
  if (queue_.empty()) return std::nullopt;
  return queue_.front().first;
}

std::optional<int64_t> TakePool::NextExpired(TimePoint now) {
  DropEnded();
  if (queue_.empty() || queue_.front().first > now) return std::nullopt;
  return queue_.front().second;
}

int64_t TakePool::memory_bytes() const {
  size_t bytes = takes_.size() * sizeof(TakeState) + free_.capacity() * sizeof(uint32_t) +
                 queue_.capacity() * sizeof(Deadline);
  for (const TakeState& take : takes_) bytes += take.groups.capacity() * sizeof(int64_t);
  return static_cast<int64_t>(bytes);
}

}  // namespace forebay::buffer
