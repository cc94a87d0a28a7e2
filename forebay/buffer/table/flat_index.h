// FlatIndex: from an id to the u32 index of the element that has it. Four bytes an entry: ids are
// compared through the elements.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"

namespace forebay::buffer {

// Starts to load it. (The empty statement: GCC takes functions that only prefetch for ones without
// any effect, and leaves calls of them out.)
inline void Prefetch(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

// Open addressing, split over many small tables that grow one at a time, by half: no pause for
// millions of entries, and no moment with two copies of all. `key_of(index)` gives an element's id;
// it must be right for every index in here. Not thread-safe.
class FlatIndex {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  // The index of the element with this id, or kNone.
  template <typename KeyOf>
  uint32_t Find(int64_t key, const KeyOf& key_of) const {
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    const Shard* shard = ShardOf(hash);
    if (shard == nullptr || shard->entries.empty()) return kNone;
    const auto capacity = static_cast<uint32_t>(shard->entries.size());
    for (uint32_t at = Home(hash, capacity);; at = Next(at, capacity)) {
      const uint32_t index = shard->entries[at];
      if (index == kNone || key_of(index) == key) return index;
    }
  }

  // Starts to load where Find(key) will begin. Later, with that loaded, `visit` gets the elements
  // that Find will compare (some, at most), to load them too: so many ids in a row wait for their
  // memory together.
  void PrefetchEntries(int64_t key) const {
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    const Shard* shard = ShardOf(hash);
    if (shard == nullptr || shard->entries.empty()) return;
    const uint32_t home = Home(hash, static_cast<uint32_t>(shard->entries.size()));
    Prefetch(&shard->entries[home]);
  }
  template <typename Visit>
  void VisitCandidates(int64_t key, const Visit& visit) const {
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    const Shard* shard = ShardOf(hash);
    if (shard == nullptr || shard->entries.empty()) return;
    const auto capacity = static_cast<uint32_t>(shard->entries.size());
    uint32_t at = Home(hash, capacity);
    for (int n = 0; n < kPrefetched && shard->entries[at] != kNone; ++n) {
      visit(shard->entries[at]);
      at = Next(at, capacity);
    }
  }

  // Room for so many entries in all.
  template <typename KeyOf>
  void Reserve(size_t size, const KeyOf& key_of) {
    if (size < kShards * kFewest) return;
    if (shards_.empty()) shards_.resize(kShards);
    // Most shards get no more than the average and four standard deviations.
    const size_t average = size / kShards;
    const size_t most = average + 4 * static_cast<size_t>(std::sqrt(average));
    const size_t capacity = most + most / 2 + 2;
    for (Shard& shard : shards_) {
      if (shard.entries.size() < capacity) Rebuild(shard, capacity, key_of);
    }
  }

  // The id must not be here.
  template <typename KeyOf>
  void Insert(int64_t key, uint32_t index, const KeyOf& key_of) {
    if (shards_.empty()) shards_.resize(kShards);
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    Shard& shard = shards_[hash >> kShardShift];
    if (static_cast<size_t>(shard.used + 1) * 3 > shard.entries.size() * 2) Grow(shard, key_of);
    Put(shard.entries, hash, index);
    ++shard.used;
    ++size_;
  }

  // The id must be here. The element must still have its id.
  template <typename KeyOf>
  void Erase(int64_t key, const KeyOf& key_of) {
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    Shard& shard = shards_[hash >> kShardShift];
    std::vector<uint32_t>& entries = shard.entries;
    const auto capacity = static_cast<uint32_t>(entries.size());
    uint32_t hole = Home(hash, capacity);
    while (key_of(entries[hole]) != key) hole = Next(hole, capacity);
    // Entries after the hole move up, unless they would come to lie before their home.
    for (uint32_t at = Next(hole, capacity); entries[at] != kNone; at = Next(at, capacity)) {
      const uint32_t home = Home(Mix64(static_cast<uint64_t>(key_of(entries[at]))), capacity);
      if (Distance(home, at, capacity) < Distance(hole, at, capacity)) continue;
      entries[hole] = entries[at];
      hole = at;
    }
    entries[hole] = kNone;
    --shard.used;
    --size_;
    if (entries.size() > kFewest * 2 && static_cast<size_t>(shard.used) * 8 < entries.size()) {
      Rebuild(shard, entries.size() / 2, key_of);
    }
  }

  size_t size() const { return size_; }
  int64_t memory_bytes() const {
    size_t bytes = shards_.capacity() * sizeof(Shard);
    for (const Shard& shard : shards_) bytes += shard.entries.capacity() * 4 + 16;
    return static_cast<int64_t>(bytes);
  }

 private:
  static constexpr int kShardShift = 54;
  static constexpr size_t kShards = size_t{1} << (64 - kShardShift);
  static constexpr size_t kFewest = 8;
  static constexpr int kPrefetched = 8;

  struct Shard {
    std::vector<uint32_t> entries;
    uint32_t used = 0;
  };

  static uint32_t Home(uint64_t hash, uint32_t capacity) {
    return static_cast<uint32_t>(((hash & 0xffffffff) * capacity) >> 32);
  }
  static uint32_t Next(uint32_t at, uint32_t capacity) { return at + 1 == capacity ? 0 : at + 1; }
  static uint32_t Distance(uint32_t from, uint32_t to, uint32_t capacity) {
    return to >= from ? to - from : to + capacity - from;
  }
  static void Put(std::vector<uint32_t>& entries, uint64_t hash, uint32_t index) {
    const auto capacity = static_cast<uint32_t>(entries.size());
    uint32_t at = Home(hash, capacity);
    while (entries[at] != kNone) at = Next(at, capacity);
    entries[at] = index;
  }
  template <typename KeyOf>
  static void Grow(Shard& shard, const KeyOf& key_of) {
    const size_t size = shard.entries.size();
    Rebuild(shard, size < kFewest ? kFewest : size + size / 2, key_of);
  }
  template <typename KeyOf>
  static void Rebuild(Shard& shard, size_t capacity, const KeyOf& key_of) {
    std::vector<uint32_t> entries(capacity, kNone);
    for (const uint32_t index : shard.entries) {
      if (index != kNone) Put(entries, Mix64(static_cast<uint64_t>(key_of(index))), index);
    }
    shard.entries = std::move(entries);
  }
  const Shard* ShardOf(uint64_t hash) const {
    return shards_.empty() ? nullptr : &shards_[hash >> kShardShift];
  }

  std::vector<Shard> shards_;
  size_t size_ = 0;
};

}  // namespace forebay::buffer
