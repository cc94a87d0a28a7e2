// The parts of a table by themselves: id sets, indexes, queues, selectors, takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/bytes.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/buffer/table/chunked_array.h"
#include "forebay/buffer/table/flat_index.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/buffer/table/ready_queue.h"
#include "forebay/buffer/table/ready_selector.h"
#include "forebay/buffer/table/segment_use.h"
#include "forebay/buffer/table/take_pool.h"

namespace forebay::buffer {
namespace {

std::set<int64_t> Difference(const IdSet& a, const IdSet& b) {
  std::set<int64_t> ids;
  a.ForEachNotIn(b, [&](int64_t begin, int64_t end) {
    for (int64_t id = begin; id < end; ++id) ids.insert(id);
    return true;
  });
  return ids;
}

TEST(IdSet, AgreesWithASet) {
  Rng rng(1);
  IdSet ids, others;
  std::set<int64_t> reference, other_reference;
  int64_t run = 0;
  for (int i = 0; i < 20000; ++i) {
    // Runs, as producers make them, and jumps.
    run = rng.Below(4) == 0 ? static_cast<int64_t>(rng.Below(300)) : (run + 1) % 300;
    if (rng.Below(3) == 0) {
      ASSERT_EQ(ids.Erase(run), reference.erase(run) > 0);
    } else {
      ASSERT_EQ(ids.Insert(run), reference.insert(run).second);
    }
    if (rng.Below(50) == 0) {
      const IdSet copy = ids;
      ids = rng.Below(2) == 0 ? copy : IdSet(copy);
    }
    const auto other = static_cast<int64_t>(rng.Below(300));
    ASSERT_EQ(ids.Contains(other), reference.count(other) > 0);
    ASSERT_EQ(ids.Max(), reference.empty() ? -1 : *reference.rbegin());
    ASSERT_EQ(ids.count(), std::ssize(reference));
    if (rng.Below(2) == 0) {
      others.Insert(other);
      other_reference.insert(other);
    } else {
      others.Erase(other);
      other_reference.erase(other);
    }
    if (i % 97 != 0) continue;
    std::set<int64_t> expected;
    std::ranges::set_difference(reference, other_reference,
                                std::inserter(expected, expected.end()));
    ASSERT_EQ(Difference(ids, others), expected);
    ASSERT_EQ(others.Includes(ids), expected.empty());
    ByteWriter out;
    ids.Encode(out);
    const std::string bytes = std::move(out).Take();
    IdSet back;
    ByteReader in(bytes);
    ASSERT_TRUE(IdSet::Decode(in, back) && in.AtEnd());
    ASSERT_EQ(back, ids);
    ASSERT_EQ(back.count(), ids.count());
  }
  for (int64_t id = 0; id < 300; ++id) ids.Insert(id);
  EXPECT_EQ(ids.intervals(), 1U);
}

TEST(IdSet, LargeIdsAndHostileBytes) {
  IdSet ids;
  for (int64_t producer = 0; producer < 64; ++producer) {
    for (int64_t n = 0; n < 10; ++n) EXPECT_TRUE(ids.Insert((producer << 40) + n));
  }
  EXPECT_TRUE(ids.Insert(INT64_MAX - 1));
  EXPECT_EQ(ids.intervals(), 65U);
  ByteWriter out;
  ids.Encode(out);
  const std::string good = std::move(out).Take();
  EXPECT_LT(good.size(), 65U * 10);
  for (size_t n = 0; n < good.size(); ++n) {
    IdSet back;
    ByteReader in(std::string_view(good).substr(0, n));
    EXPECT_FALSE(IdSet::Decode(in, back)) << n;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    IdSet back;
    ByteReader in(bad);
    if (!IdSet::Decode(in, back)) continue;
    EXPECT_GE(back.count(), static_cast<int64_t>(back.intervals()));
  }
  const auto decodes = [](std::vector<uint8_t> bytes) {
    ByteWriter w;
    w.Put(uint64_t{1});
    w.PutColumn(bytes);
    const std::string text = std::move(w).Take();
    IdSet back;
    ByteReader in(text);
    return IdSet::Decode(in, back);
  };
  EXPECT_TRUE(decodes({0, 1}));
  EXPECT_FALSE(decodes({0, 0})) << "an empty interval";
  const std::vector<uint8_t> most(8, 0xff);  // 56 bits, and 7 more below
  std::vector<uint8_t> overflow = most;
  overflow.push_back(0x7f);
  overflow.push_back(1);
  EXPECT_FALSE(decodes(overflow)) << "ends beyond the largest id";
  EXPECT_FALSE(decodes(std::vector<uint8_t>(12, 0xff))) << "a number that does not end";
}

TEST(FlatIndex, AgreesWithAMapWhileItGrowsAndShrinks) {
  Rng rng(2);
  FlatIndex index;
  std::vector<int64_t> keys;  // by element
  std::map<int64_t, uint32_t> reference;
  const auto key_of = [&](uint32_t i) { return keys[i]; };
  EXPECT_EQ(index.Find(5, key_of), FlatIndex::kNone);
  for (int i = 0; i < 60000; ++i) {
    const bool grows = i < 25000;
    const auto key = static_cast<int64_t>(rng.Below(20000)) << (rng.Below(2) * 40);
    const auto known = reference.find(key);
    ASSERT_EQ(index.Find(key, key_of), known == reference.end() ? FlatIndex::kNone : known->second);
    if (known == reference.end() && (grows || rng.Below(4) == 0)) {
      keys.push_back(key);
      index.Insert(key, static_cast<uint32_t>(keys.size() - 1), key_of);
      reference[key] = static_cast<uint32_t>(keys.size() - 1);
    } else if (known != reference.end() && (!grows || rng.Below(4) == 0)) {
      index.Erase(key, key_of);
      reference.erase(known);
    }
    ASSERT_EQ(index.size(), reference.size());
  }
  for (const auto& [key, element] : reference) ASSERT_EQ(index.Find(key, key_of), element);
}

TEST(ChunkedArray, GrowsInPlaceShrinksAndCopies) {
  ChunkedArray<int> a;
  a.PushBack(7);
  const int* first = &a[0];
  for (int i = 1; i < 5000; ++i) a.PushBack(i);
  EXPECT_EQ(&a[0], first) << "nothing moved";
  ChunkedArray<int> b = a;
  b[4000] = -1;
  EXPECT_EQ(a[4000], 4000);
  const int64_t full = a.memory_bytes();
  while (a.size() > 10) a.PopBack();
  EXPECT_LT(a.memory_bytes(), full);
  a.Resize(3000);
  EXPECT_EQ(a[2999], 0) << "new elements are new";
  EXPECT_EQ(a[9], 9);
}

TEST(ReadyQueue, OldestFirstTiesByGroupAndFilters) {
  Rng rng(3);
  ReadyQueue queue;
  std::vector<std::pair<uint32_t, int64_t>> expected;
  for (uint32_t i = 0; i < 3000; ++i) {
    const auto version = static_cast<uint32_t>(rng.Below(10));
    const auto group_id = static_cast<int64_t>(rng.Below(1000000));
    queue.Push({.version = version, .group = i, .group_id = group_id});
    if (i % 3 != 0) expected.emplace_back(version, group_id);
  }
  queue.Filter([](const ReadyQueue::Entry& entry) { return entry.group % 3 != 0; });
  std::ranges::sort(expected);
  for (const auto& [version, group_id] : expected) {
    const ReadyQueue::Entry entry = queue.Pop();
    ASSERT_EQ(entry.version, version);
    ASSERT_EQ(entry.group_id, group_id);
  }
  EXPECT_TRUE(queue.empty());
}

// Draws, and how far the counts are from what is expected: chi-square.
template <typename Draw>
double ChiSquare(const std::map<uint32_t, double>& weights, int draws, const Draw& draw) {
  double total = 0;
  for (const auto& [group, weight] : weights) total += weight;
  std::map<uint32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[draw()];
  double chi = 0;
  for (const auto& [group, weight] : weights) {
    const double expected = draws * weight / total;
    if (weight > 0) chi += (counts[group] - expected) * (counts[group] - expected) / expected;
    if (weight == 0 && counts[group] > 0) chi = 1e9;
  }
  for (const auto& [group, count] : counts) {
    if (weights.count(group) == 0) chi = 1e9;
  }
  return chi;
}

TEST(ReadySelector, DrawsInProportionAfterManyChanges) {
  Rng rng(4);
  ReadySelector selector;
  std::map<uint32_t, uint32_t> place_of;
  std::map<uint32_t, double> weights, ones;
  const auto remove = [&](uint32_t group) {
    const uint32_t place = place_of.at(group);
    const uint32_t moved = selector.Remove(place);
    if (moved != ReadySelector::kNone) place_of[moved] = place;
    place_of.erase(group);
    weights.erase(group);
  };
  for (uint32_t group = 0; group < 6000; ++group) {
    const auto weight = static_cast<float>(group % 5);
    place_of[group] = selector.Add(group, weight);
    weights[group] = weight;
    while (place_of.size() > 300) {
      auto any = place_of.lower_bound(static_cast<uint32_t>(rng.Below(group)));
      if (any == place_of.end()) any = place_of.begin();
      remove(any->first);
    }
  }
  ASSERT_EQ(selector.size(), weights.size());
  const auto degrees = static_cast<double>(weights.size());
  // 99.99 % of such sums are below degrees + 4 * sqrt(2 * degrees) + 8.
  const double limit = degrees + 4 * std::sqrt(2 * degrees) + 8;
  EXPECT_LT(ChiSquare(weights, 60000, [&] { return selector.DrawWeighted(rng); }), limit);
  for (const auto& [group, weight] : weights) ones[group] = 1;
  EXPECT_LT(ChiSquare(ones, 60000, [&] { return selector.DrawUniform(rng); }), limit);
  EXPECT_GT(ChiSquare(ones, 60000, [&] { return selector.DrawWeighted(rng); }), limit * 4)
      << "the test tells them apart";
}

TEST(ReadySelector, WithoutAnyWeightEveryGroupIsAsLikely) {
  Rng rng(5);
  ReadySelector selector;
  std::map<uint32_t, double> ones;
  for (uint32_t group = 0; group < 40; ++group) {
    selector.Add(group, 0);
    ones[group] = 1;
  }
  EXPECT_LT(ChiSquare(ones, 20000, [&] { return selector.DrawWeighted(rng); }), 40 + 4 * 9 + 8);
  // Numbers of any size, and a tiny one among them.
  ReadySelector extreme;
  extreme.Add(0, 3e38F);
  extreme.Add(1, 1e-38F);
  extreme.Add(2, 3e38F);
  EXPECT_LT(ChiSquare({{0, 1}, {2, 1}}, 20000, [&] { return extreme.DrawWeighted(rng); }), 20);
}

TEST(TakePool, IdsAreNeverUsedTwiceAndExpireInOrder) {
  TakePool pool;
  const TimePoint t0{};
  std::set<int64_t> ids;
  std::vector<int64_t> groups;
  for (int i = 0; i < 1000; ++i) {
    TakeState& take = pool.Add(t0 + std::chrono::seconds(i));
    take.groups = {i};
    ASSERT_TRUE(ids.insert(take.take_id).second);
    const int64_t id = take.take_id;
    if (i % 10 == 0) continue;
    pool.Remove(id, groups);
    EXPECT_EQ(groups, std::vector<int64_t>{i});
    EXPECT_EQ(pool.Find(id), nullptr);
  }
  EXPECT_EQ(pool.size(), 100);
  EXPECT_LT(pool.memory_bytes(), 100 * 400) << "nothing is left of those that ended";
  EXPECT_EQ(pool.NextExpiry(), t0);
  for (int i = 0; i < 1000; i += 10) {
    const auto expired = pool.NextExpired(t0 + std::chrono::seconds(995));
    ASSERT_TRUE(expired.has_value());
    EXPECT_EQ(pool.Find(*expired)->groups, std::vector<int64_t>{i});
    pool.Remove(*expired, groups);
  }
  EXPECT_FALSE(pool.NextExpired(t0 + std::chrono::hours(1)).has_value());
  EXPECT_FALSE(pool.NextExpiry().has_value());
  pool.SkipTo(int64_t{1} << 42);
  EXPECT_GT(pool.Add(t0).take_id, *ids.rbegin());
  EXPECT_EQ(pool.Find(0), nullptr);
  EXPECT_EQ(pool.Find(-1), nullptr);
  EXPECT_EQ(pool.Find(INT64_MAX), nullptr);
}

TEST(SegmentUse, CountsAndSorts) {
  SegmentUse use;
  use.Enter(7, 100);
  use.Enter(3, 50);
  use.Enter(7, 1);
  use.Enter(0xffffffff, 0);
  EXPECT_EQ(use.Of(7), (SegmentLive{.segment = 7, .records = 2, .bytes = 101}));
  use.Leave(7, 100);
  EXPECT_EQ(use.ByBytes(), (std::vector<SegmentLive>{{.segment = 0xffffffff, .records = 1},
                                                     {.segment = 7, .records = 1, .bytes = 1},
                                                     {.segment = 3, .records = 1, .bytes = 50}}));
  use.Leave(0xffffffff, 0);
  use.Leave(7, 1);
  EXPECT_EQ(use.Of(7).records, 0U);
  EXPECT_EQ(use.ByBytes().size(), 1U);
}

}  // namespace
}  // namespace forebay::buffer
