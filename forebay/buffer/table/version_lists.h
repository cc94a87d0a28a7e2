// VersionLists: pending trajectories by their min_version, for the rejection of stale ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "forebay/buffer/table/group_store.h"

namespace forebay::buffer {

// Doubly linked through the slots: nothing is left behind by what leaves. A map node for each
// version that is there.
class VersionLists {
 public:
  void Link(GroupStore& store, uint32_t s);
  void Unlink(GroupStore& store, uint32_t s);
  // Slots older than `version`, oldest first, by trajectory id within a version.
  std::vector<uint32_t> OlderThan(const GroupStore& store, int64_t version);

  int64_t memory_bytes() const { return static_cast<int64_t>(heads_.size()) * 64; }

 private:
  // A list that becomes empty stays until there are so many: versions come again.
  static constexpr size_t kListsKept = 64;

  std::map<uint32_t, uint32_t> heads_;  // version -> slot, or kNoIndex
};

}  // namespace forebay::buffer
