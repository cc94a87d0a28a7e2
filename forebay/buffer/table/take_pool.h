// TakePool: which groups each reader without checkpoints holds, and until when.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"

namespace forebay::buffer {

struct TakeState {
  int64_t take_id = 0;
  TimePoint expires;
  std::vector<int64_t> groups;  // ascending
};

// A take's id leads to it: no search, no allocation once the pool is warm. Ids are never used
// twice. Copyable, not thread-safe.
class TakePool {
 public:
  // More takes at a time than anybody holds.
  static constexpr int kPlaceBits = 20;
  static constexpr int64_t kTakesMax = int64_t{1} << kPlaceBits;

  bool HasRoom() const { return !free_.empty() || std::ssize(takes_) < kTakesMax; }
  // An empty one. There must be room.
  TakeState& Add(TimePoint expires);
  // nullptr: expired, ended or unknown.
  const TakeState* Find(int64_t take_id) const;
  // Gives its groups back to the caller by swapping them with `groups` (cleared first): both keep
  // their memory. It must be there.
  void Remove(int64_t take_id, std::vector<int64_t>& groups);
  std::optional<TimePoint> NextExpiry();
  // The take that expired first at `now` or before; nullopt: none.
  std::optional<int64_t> NextExpired(TimePoint now);
  int64_t size() const { return live_; }
  // Ids of an earlier process are not given again when this is above all of its serials.
  void SkipTo(int64_t serial) { next_serial_ = serial > next_serial_ ? serial : next_serial_; }
  int64_t memory_bytes() const;

 private:
  using Deadline = std::pair<TimePoint, int64_t>;

  void DropEnded();

  std::deque<TakeState> takes_;  // take_id 0: free
  std::vector<uint32_t> free_;   // places
  std::vector<Deadline> queue_;  // a heap; ends that came before are found at the top
  int64_t live_ = 0;
  int64_t next_serial_ = 1;
};

}  // namespace forebay::buffer
