// A plan has each pair of tokens that see each other in exactly one pair of blocks, and no other
// segment's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/models/attention/host/plan.h"
#include "forebay/models/attention/host/problem.h"

namespace forebay::models::attention::host {
namespace {

struct Rows {
  int32_t rows = 1, window = std::numeric_limits<int32_t>::max(), queries_max = 8;
  std::vector<int32_t> query_segments, places, key_segments;

  int32_t queries() const { return static_cast<int32_t>(places.size()); }
  int32_t keys() const { return static_cast<int32_t>(key_segments.size()) / rows; }
};

Plan PlanOf(const Rows& r) {
  return MakePlan({.rows = r.rows,
                   .query_segments = r.query_segments,
                   .query_places = r.places,
                   .key_segments = r.key_segments,
                   .window = r.window,
                   .queries_max = r.queries_max});
}

using Pairs = std::multiset<std::pair<int32_t, int32_t>>;

Pairs Expected(const Rows& r) {
  Pairs pairs;
  for (int32_t b = 0; b < r.rows; ++b) {
    for (int32_t q = 0; q < r.queries(); ++q) {
      const int32_t query = b * r.queries() + q, place = r.places[static_cast<size_t>(q)];
      for (int32_t k = 0; k <= place && k < r.keys(); ++k) {
        const int32_t key = b * r.keys() + k;
        const int32_t segment = r.query_segments[static_cast<size_t>(query)];
        if (segment != 0 && segment == r.key_segments[static_cast<size_t>(key)] &&
            place - k < r.window) {
          pairs.insert({query, key});
        }
      }
    }
  }
  return pairs;
}

// The pairs of the plan that the order and the window allow.
Pairs Visited(const Rows& r, const Plan& plan) {
  Pairs pairs;
  for (const Block& q : plan.query_blocks) {
    EXPECT_LE(q.count, r.queries_max);
    for (int32_t i = q.first; i <= q.last; ++i) {
      const Block& k = plan.key_blocks[static_cast<size_t>(i)];
      EXPECT_LE(k.count, kKeysMax);
      for (int32_t a = 0; a < q.count; ++a) {
        for (int32_t b = 0; b < k.count; ++b) {
          const int32_t distance = q.place + a - k.place - b;
          EXPECT_EQ(r.query_segments[static_cast<size_t>(q.token + a)],
                    r.key_segments[static_cast<size_t>(k.token + b)]);
          if (distance >= 0 && distance < r.window) pairs.insert({q.token + a, k.token + b});
        }
      }
    }
  }
  return pairs;
}

// Both sides must name the same pairs of blocks.
std::set<std::pair<int32_t, int32_t>> BlockPairs(const std::vector<Block>& blocks, bool swapped) {
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (int32_t i = 0; i < static_cast<int32_t>(blocks.size()); ++i) {
    const Block& block = blocks[static_cast<size_t>(i)];
    for (int32_t j = block.first; j <= block.last; ++j) {
      pairs.insert(swapped ? std::pair(j, i) : std::pair(i, j));
    }
  }
  return pairs;
}

// Every token is in one block or one gap, but for queries that meet no key, which are in both.
void ExpectCovered(const std::vector<Block>& blocks, const std::vector<Gap>& gaps, size_t tokens) {
  std::vector<int> seen(tokens);
  for (const Block& block : blocks) {
    for (int32_t i = 0; i < block.count; ++i) ++seen[static_cast<size_t>(block.token + i)];
  }
  for (const Gap& gap : gaps) {
    for (int32_t i = 0; i < gap.count; ++i) seen[static_cast<size_t>(gap.token + i)] |= 1;
  }
  EXPECT_EQ(std::ranges::count(seen, 1), static_cast<int64_t>(tokens));
}

void Check(const Rows& r) {
  const Plan plan = PlanOf(r);
  EXPECT_EQ(Visited(r, plan), Expected(r));
  EXPECT_EQ(BlockPairs(plan.query_blocks, false), BlockPairs(plan.key_blocks, true));
  ExpectCovered(plan.query_blocks, plan.query_gaps, r.query_segments.size());
  ExpectCovered(plan.key_blocks, plan.key_gaps, r.key_segments.size());
}

TEST(HostPlan, MeetsExactlyThePairsThatSeeEachOther) {
  Rng rng(3);
  for (int draw = 0; draw < 200; ++draw) {
    Rows r{.rows = static_cast<int32_t>(1 + rng.Below(3))};
    r.queries_max = static_cast<int32_t>(1 + rng.Below(20));
    if (rng.Below(2) == 0) r.window = static_cast<int32_t>(1 + rng.Below(100));
    const auto length = static_cast<int32_t>(1 + rng.Below(200));
    r.places.resize(static_cast<size_t>(length));
    std::iota(r.places.begin(), r.places.end(), 0);
    const uint64_t run = 1 + rng.Below(120);
    for (int32_t i = 0; i < r.rows * length; ++i) {
      const bool same = !r.key_segments.empty() && rng.Below(run) > 0;
      r.key_segments.push_back(same ? r.key_segments.back() : static_cast<int32_t>(rng.Below(4)));
    }
    r.query_segments = r.key_segments;
    SCOPED_TRACE(draw);
    Check(r);
  }
}

// A device has two chunks of a row of four.
TEST(HostPlan, QueriesMayBeChunksOfTheRow) {
  Rows r{.key_segments = std::vector<int32_t>(80, 1)};
  for (int32_t i = 25; i < 60; ++i) r.key_segments[static_cast<size_t>(i)] = 2;
  for (const int32_t begin : {20, 40}) {
    for (int32_t i = begin; i < begin + 20; ++i) {
      r.places.push_back(i);
      r.query_segments.push_back(r.key_segments[static_cast<size_t>(i)]);
    }
  }
  Check(r);
}

TEST(HostPlan, QueriesWithoutKeysAreGaps) {
  Rows r{.query_segments = {7, 7, 0}, .places = {0, 1, 2}, .key_segments = {1, 1, 1}};
  const Plan plan = PlanOf(r);
  ASSERT_EQ(plan.query_blocks.size(), 1u);
  EXPECT_LT(plan.query_blocks[0].last, plan.query_blocks[0].first);
  EXPECT_EQ(plan.query_gaps.size(), 2u);
  EXPECT_EQ(plan.key_blocks.size(), 1u);
  EXPECT_LT(plan.key_blocks[0].last, plan.key_blocks[0].first);
}

}  // namespace
}  // namespace forebay::models::attention::host
