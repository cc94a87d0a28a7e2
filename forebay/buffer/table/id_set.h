// IdSet: which ids of a counter were used. Ids arrive almost in order, so it holds intervals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "forebay/base/bytes.h"

namespace forebay::buffer {

// Not thread-safe. Costs a map node per gap, not per id. An id that follows the one inserted before
// it costs no search.
class IdSet {
 public:
  IdSet() = default;
  IdSet(const IdSet& other) : intervals_(other.intervals_), count_(other.count_) {}
  IdSet& operator=(const IdSet& other);
  IdSet(IdSet&& other) noexcept;
  IdSet& operator=(IdSet&& other) noexcept;
  ~IdSet() = default;

  // False if it was there. `id` is below the largest int64.
  bool Insert(int64_t id);
  bool Contains(int64_t id) const;
  // False if it was not there.
  bool Erase(int64_t id);
  // The largest id, or -1 (ids are not negative).
  int64_t Max() const { return intervals_.empty() ? -1 : intervals_.rbegin()->second - 1; }
  int64_t count() const { return count_; }
  size_t intervals() const { return intervals_.size(); }
  // Whether every id of `other` is here.
  bool Includes(const IdSet& other) const;
  // Calls visit(begin, end) for every interval of ids that are here and not in `other`, in order,
  // until it gives false.
  template <typename Visit>
  void ForEachNotIn(const IdSet& other, const Visit& visit) const {
    for (const auto& [begin, end] : intervals_) {
      int64_t from = begin;
      auto next = other.intervals_.upper_bound(begin);
      if (next != other.intervals_.begin()) --next;
      for (; next != other.intervals_.end() && next->first < end; ++next) {
        if (next->second <= from) continue;
        if (next->first > from && !visit(from, next->first)) return;
        from = next->second;
      }
      if (from < end && !visit(from, end)) return;
    }
  }
  int64_t memory_bytes() const { return static_cast<int64_t>(intervals_.size()) * 64; }

  // About 2 bytes a short gap: the distances from one end to the next, 7 bits a byte.
  void Encode(ByteWriter& out) const;
  // False for bytes that Encode did not write.
  static bool Decode(ByteReader& in, IdSet& out);

  friend bool operator==(const IdSet& a, const IdSet& b) { return a.intervals_ == b.intervals_; }

 private:
  using Intervals = std::map<int64_t, int64_t>;  // begin -> end (exclusive); never touching

  Intervals intervals_;
  int64_t count_ = 0;
  // Of the last insertion, when recent_end_ is its end; -1: none.
  Intervals::iterator recent_;
  int64_t recent_end_ = -1;
};

}  // namespace forebay::buffer
