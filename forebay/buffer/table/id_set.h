// IdSet: which ids of a counter were used. Ids arrive almost in order, so it holds intervals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "forebay/base/bytes.h"

namespace forebay::buffer {

// Not thread-safe. Costs a map node per gap, not per id.
class IdSet {
 public:
  // False if it was there. `id` is below the largest int64.
  bool Insert(int64_t id);
  bool Contains(int64_t id) const;
  void Erase(int64_t id);
  // The largest id, or -1 (ids are not negative).
  int64_t Max() const { return intervals_.empty() ? -1 : intervals_.rbegin()->second - 1; }
  size_t intervals() const { return intervals_.size(); }

  void Encode(ByteWriter& out) const;
  // False for bytes that Encode did not write.
  static bool Decode(ByteReader& in, IdSet& out);

  friend bool operator==(const IdSet&, const IdSet&) = default;

 private:
  std::map<int64_t, int64_t> intervals_;  // begin -> end (exclusive); never touching each other
};

}  // namespace forebay::buffer
