#include "forebay/buffer/table/id_set.h"

#include <cstdint>
#include <iterator>

#include "forebay/base/bytes.h"

namespace forebay::buffer {

bool IdSet::Contains(int64_t id) const {
  auto next = intervals_.upper_bound(id);
  return next != intervals_.begin() && id < std::prev(next)->second;
}

bool IdSet::Insert(int64_t id) {
  auto next = intervals_.upper_bound(id);
  auto self = intervals_.end();
  if (next != intervals_.begin()) {
    auto before = std::prev(next);
    if (id < before->second) return false;
    if (before->second == id) {
      before->second = id + 1;
      self = before;
    }
  }
  if (self == intervals_.end()) self = intervals_.emplace_hint(next, id, id + 1);
  if (next != intervals_.end() && next->first == id + 1) {
    self->second = next->second;
    intervals_.erase(next);
  }
  return true;
}

void IdSet::Erase(int64_t id) {
  auto next = intervals_.upper_bound(id);
  if (next == intervals_.begin()) return;
  auto self = std::prev(next);
  const int64_t begin = self->first, end = self->second;
  if (id >= end) return;
  intervals_.erase(self);
  if (begin < id) intervals_[begin] = id;
  if (id + 1 < end) intervals_[id + 1] = end;
}

void IdSet::Encode(ByteWriter& out) const {
  out.Put(static_cast<uint64_t>(intervals_.size()));
  for (const auto& [begin, end] : intervals_) {
    out.Put(begin);
    out.Put(end);
  }
}

bool IdSet::Decode(ByteReader& in, IdSet& out) {
  const auto count = in.Get<uint64_t>();
  if (!in.Fits(count, 16)) return false;
  int64_t last = -1;
  for (uint64_t i = 0; i < count; ++i) {
    const auto begin = in.Get<int64_t>();
    const auto end = in.Get<int64_t>();
    if (begin < 0 || (i > 0 && begin <= last) || end <= begin) return false;
    out.intervals_.emplace_hint(out.intervals_.end(), begin, end);
    last = end;
  }
  return in.ok();
}

}  // namespace forebay::buffer
