#include "forebay/buffer/table/id_set.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "forebay/base/bytes.h"

namespace forebay::buffer {
namespace {

void PutVarint(ByteWriter& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.Put(static_cast<uint8_t>(value | 0x80));
  out.Put(static_cast<uint8_t>(value));
}

// False for more than 63 bits: ids are not negative.
bool GetVarint(ByteReader& in, int64_t& value) {
  uint64_t bits = 0;
  for (int shift = 0; shift < 63; shift += 7) {
    const auto byte = in.Get<uint8_t>();
    bits |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte >= 0x80) continue;
    value = static_cast<int64_t>(bits);
    return in.ok();
  }
  return false;
}

}  // namespace

IdSet& IdSet::operator=(const IdSet& other) {
  if (this != &other) *this = IdSet(other);
  return *this;
}

IdSet::IdSet(IdSet&& other) noexcept
    : intervals_(std::move(other.intervals_)), count_(std::exchange(other.count_, 0)) {
  other.intervals_.clear();
  other.recent_.fill({});
}

IdSet& IdSet::operator=(IdSet&& other) noexcept {
  intervals_ = std::move(other.intervals_);
  count_ = std::exchange(other.count_, 0);
  recent_.fill({});
  other.intervals_.clear();
  other.recent_.fill({});
  return *this;
}

bool IdSet::Contains(int64_t id) const {
  if (recent_[PlaceOf(id)].end == id) return false;  // intervals do not touch
  auto next = intervals_.upper_bound(id);
  return next != intervals_.begin() && id < std::prev(next)->second;
}

bool IdSet::Insert(int64_t id) {
  auto self = intervals_.end();
  Intervals::iterator next;
  if (Recent& recent = RecentOf(id); recent.end == id) {
    self = recent.interval;
    next = std::next(self);
    self->second = id + 1;
    recent.end = -1;
  } else {
    next = intervals_.upper_bound(id);
    if (next != intervals_.begin()) {
      auto before = std::prev(next);
      if (id < before->second) return false;
      if (before->second == id) {
        before->second = id + 1;
        self = before;
      }
    }
    if (self == intervals_.end()) self = intervals_.emplace_hint(next, id, id + 1);
  }
  if (next != intervals_.end() && next->first == id + 1) {
    self->second = next->second;
    intervals_.erase(next);
  }
  RecentOf(self->second) = {.end = self->second, .interval = self};
  ++count_;
  return true;
}

bool IdSet::Erase(int64_t id) {
  auto next = intervals_.upper_bound(id);
  if (next == intervals_.begin()) return false;
  auto self = std::prev(next);
  const int64_t end = self->second;
  if (id >= end) return false;
  recent_.fill({});
  --count_;
  if (self->first < id) {
    self->second = id;
    if (id + 1 < end) intervals_.emplace_hint(next, id + 1, end);
  } else if (id + 1 < end) {
    // The oldest goes first, mostly: its node is used again.
    auto node = intervals_.extract(self);
    node.key() = id + 1;
    intervals_.insert(next, std::move(node));
  } else {
    intervals_.erase(self);
  }
  return true;
}

bool IdSet::Includes(const IdSet& other) const {
  bool all = true;
  other.ForEachNotIn(*this, [&](int64_t, int64_t) { return all = false; });
  return all;
}

void IdSet::Encode(ByteWriter& out) const {
  out.Put(static_cast<uint64_t>(intervals_.size()));
  int64_t last = 0;
  for (const auto& [begin, end] : intervals_) {
    PutVarint(out, static_cast<uint64_t>(begin - last));
    PutVarint(out, static_cast<uint64_t>(end - begin));
    last = end;
  }
}

bool IdSet::Decode(ByteReader& in, IdSet& out) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto count = in.Get<uint64_t>();
  if (!in.Fits(count, 2)) return false;
  int64_t last = 0;
  for (uint64_t i = 0; i < count; ++i) {
    int64_t gap = 0, size = 0;
    if (!GetVarint(in, gap) || !GetVarint(in, size)) return false;
    if ((i > 0 && gap == 0) || size == 0 || gap > kMax - last || size > kMax - last - gap)
      return false;
    out.intervals_.emplace_hint(out.intervals_.end(), last + gap, last + gap + size);
    last += gap + size;
    out.count_ += size;
  }
  return in.ok();
}

}  // namespace forebay::buffer
