// GroupStore: where groups and their members lie, and who finds them by id.
#pragma once

#include <cstdint>

#include "forebay/buffer/table/chunked_array.h"
#include "forebay/buffer/table/flat_index.h"

namespace forebay::buffer {

inline constexpr uint32_t kNoIndex = FlatIndex::kNone;
inline constexpr uint32_t kNoVersion = 0xffffffff;

enum class SlotState : uint8_t {
  kVacant = 0,
  kInFlight = 1,
  kPending = 2,
  kRetained = 3,  // consumed, its content can still be read
  kAwaited = 4,   // pending by a snapshot without details, until its record is found
};

// One member of a group. 48 bytes: it is most of what a pending trajectory costs.
struct Slot {
  int64_t trajectory_id = 0;  // of the last attempt
  int64_t task_id = 0;
  uint32_t min_version = 0;
  float priority = 0;
  uint32_t segment = 0;
  uint32_t offset_64 = 0;
  uint32_t payload_bytes = 0;
  uint16_t attempt = 0;
  SlotState state = SlotState::kVacant;
  uint8_t flags = 0;
  // In the list of its version (pending, held by nobody).
  uint32_t previous = kNoIndex, next = kNoIndex;

  static constexpr uint8_t kTried = 1;      // had an attempt
  static constexpr uint8_t kAppending = 2;  // in flight: its append has begun
  // The rest counts attempts that were rejected as stale by this process.
  static constexpr uint8_t kStaleStep = 4;
};
static_assert(sizeof(Slot) == 48);

// 32 bytes. What is only needed of a whole group lies where what is only needed of others does.
struct Group {
  int64_t group_id = -1;      // -1: free
  int64_t holder = 0;         // the batch that it is leased in, or -take_id
  uint32_t pending : 24 = 0;  // or retained
  uint32_t flags : 8 = 0;
  uint32_t min_version = 0;  // of its members, when it is whole
  union {
    uint32_t previous = kNoIndex;  // not whole: in the list of those
    uint32_t queued;               // whole: the version it is queued with as ready, or kNoVersion
  };
  union {
    uint32_t next = kNoIndex;  // not whole: in the list of those; free: the next free one
    uint32_t place;            // whole: in the selector's array
  };

  static constexpr uint32_t kOverdue = 1;   // its members went stale again and again
  static constexpr uint32_t kRetained = 2;  // consumed
  static constexpr uint32_t kUnlisted = 4;  // made by Restore: the snapshot said nothing of it
};
static_assert(sizeof(Group) == 32);

// Members of group g are the slots g * group_size on. Copyable, not thread-safe.
class GroupStore {
 public:
  explicit GroupStore(int32_t group_size) : size_(static_cast<uint32_t>(group_size)) {}

  uint32_t group_size() const { return size_; }
  Group& group(uint32_t g) { return groups_[g]; }
  const Group& group(uint32_t g) const { return groups_[g]; }
  Slot& slot(uint32_t s) { return slots_[s]; }
  const Slot& slot(uint32_t s) const { return slots_[s]; }
  bool IsSlot(uint32_t s) const { return s < slots_.size(); }
  uint32_t FirstSlot(uint32_t g) const { return g * size_; }
  uint32_t GroupOfSlot(uint32_t s) const { return size_ == 1 ? s : s / size_; }
  bool IsWhole(uint32_t g) const { return groups_[g].pending == size_; }

  uint32_t FindGroup(int64_t group_id) const {
    return by_group_.Find(group_id, [this](uint32_t g) { return groups_[g].group_id; });
  }
  // Of an attempt that is in flight, pending or retained.
  uint32_t FindSlot(int64_t trajectory_id) const {
    return by_trajectory_.Find(trajectory_id,
                               [this](uint32_t s) { return slots_[s].trajectory_id; });
  }
  // What Find... will look at, some calls before (see FlatIndex).
  void PrefetchEntries(int64_t group_id, int64_t trajectory_id) const {
    by_group_.PrefetchEntries(group_id);
    by_trajectory_.PrefetchEntries(trajectory_id);
  }
  void PrefetchGroups(int64_t group_id) const {
    by_group_.VisitCandidates(group_id, [this](uint32_t g) { Prefetch(&groups_[g].group_id); });
  }
  // Starts to load the group and its first member.
  void PrefetchGroup(uint32_t g) const {
    Prefetch(&groups_[g]);
    PrefetchMember(g);
  }
  void PrefetchMember(uint32_t g) const {
    const Slot& first = slots_[FirstSlot(g)];
    Prefetch(&first);
    Prefetch(&first.next);  // slots lie across two lines
  }
  // Room in the indexes for so many groups and attempts.
  void ReserveIndexes(size_t groups, size_t attempts);
  bool HasRoom() const {
    return free_ != kNoIndex || (uint64_t{groups_.size()} + 1) * size_ < kNoIndex;
  }
  // A new one, in the list of those that are not whole. There must be room.
  uint32_t AddGroup(int64_t group_id);
  // All its slots must be out of every index and list.
  void RemoveGroup(uint32_t g);
  void IndexSlot(uint32_t s) {
    by_trajectory_.Insert(slots_[s].trajectory_id, s,
                          [this](uint32_t i) { return slots_[i].trajectory_id; });
  }
  void UnindexSlot(uint32_t s) {
    by_trajectory_.Erase(slots_[s].trajectory_id,
                         [this](uint32_t i) { return slots_[i].trajectory_id; });
  }

  // The list of groups that are not whole.
  void LinkOpen(uint32_t g);
  void UnlinkOpen(uint32_t g);  // its queued and place are kNo... then
  uint32_t first_open() const { return open_; }

  uint32_t live_groups() const { return static_cast<uint32_t>(by_group_.size()); }
  // Groups g below this may be live.
  uint32_t end() const { return groups_.size(); }
  int64_t memory_bytes() const {
    return slots_.memory_bytes() + groups_.memory_bytes() + by_group_.memory_bytes() +
           by_trajectory_.memory_bytes();
  }

 private:
  uint32_t size_;
  ChunkedArray<Slot> slots_;
  ChunkedArray<Group> groups_;
  FlatIndex by_group_, by_trajectory_;
  uint32_t free_ = kNoIndex;
  uint32_t open_ = kNoIndex;
};

}  // namespace forebay::buffer
