// IdSet: which ids of a counter were used. Ids arrive almost in order, so it holds intervals.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "forebay/base/bytes.h"

namespace forebay::buffer {

// Not thread-safe. Costs a map node per gap, not per id. Many producers count up at the same time:
// an id that follows one that was inserted of late costs no search.
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
  // An interval by its end; -1: none.
  struct Recent {
    int64_t end = -1;
    Intervals::iterator interval;
  };
  static constexpr int kRecentBits = 7;

  Recent& RecentOf(int64_t end) { return recent_[PlaceOf(end)]; }
  static size_t PlaceOf(int64_t end) {
    constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
    return static_cast<uint64_t>(end) * kGoldenRatio >> (64 - kRecentBits);
  }

  int64_t count_ = 0;
  std::array<Recent, size_t{1} << kRecentBits> recent_{};
};

}  // namespace forebay::buffer
