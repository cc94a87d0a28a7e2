// The table against a naive reference over random calls, and its snapshot.
#include "forebay/buffer/table/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/bytes.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

TEST(IdSet, AgreesWithASet) {
  Rng rng(1);
  IdSet ids;
  std::set<int64_t> reference;
  for (int i = 0; i < 5000; ++i) {
    const auto id = static_cast<int64_t>(rng.Below(300));
    if (rng.Below(4) == 0) {
      ids.Erase(id);
      reference.erase(id);
    } else {
      EXPECT_EQ(ids.Insert(id), reference.insert(id).second);
    }
    const auto other = static_cast<int64_t>(rng.Below(300));
    EXPECT_EQ(ids.Contains(other), reference.count(other) > 0);
    EXPECT_EQ(ids.Max(), reference.empty() ? -1 : *reference.rbegin());
  }
  ByteWriter out;
  ids.Encode(out);
  const std::string bytes = std::move(out).Take();
  IdSet back;
  ByteReader in(bytes);
  ASSERT_TRUE(IdSet::Decode(in, back));
  EXPECT_EQ(back, ids);
  for (int64_t id = 0; id < 300; ++id) ids.Insert(id);
  EXPECT_EQ(ids.intervals(), 1U);
}

// Everything in plain lists, nothing incremental.
struct Reference {
  enum State { kInFlight, kPending, kTrained, kRejected };
  struct Attempt {
    TrajectoryId id;
    State state = kInFlight;
    int64_t version = 0;
    int64_t batch = 0;
  };
  int32_t group_size;
  std::vector<Attempt> attempts;
  std::set<int64_t> closed;
  int64_t late = 0;

  Attempt* Find(int64_t trajectory_id) {
    for (Attempt& a : attempts) {
      if (a.id.trajectory_id == trajectory_id) return &a;
    }
    return nullptr;
  }
  bool Taken(int64_t group, int32_t member) const {
    return std::ranges::any_of(attempts, [&](const Attempt& a) {
      return a.id.group_id == group && a.id.member == member && a.state != kRejected;
    });
  }
  int64_t Count(State state) const {
    return std::ranges::count_if(attempts, [&](const Attempt& a) { return a.state == state; });
  }
  // (oldest version, group) of the groups that can be leased.
  std::vector<std::pair<int64_t, int64_t>> Ready() const {
    std::map<int64_t, std::pair<int32_t, int64_t>> groups;  // group -> (members, oldest)
    for (const Attempt& a : attempts) {
      if (a.state != kPending || a.batch != 0) continue;
      auto [it, added] = groups.try_emplace(a.id.group_id, 0, a.version);
      ++it->second.first;
      it->second.second = std::min(it->second.second, a.version);
    }
    std::vector<std::pair<int64_t, int64_t>> ready;
    for (const auto& [group, info] : groups) {
      if (info.first == group_size) ready.emplace_back(info.second, group);
    }
    std::ranges::sort(ready);
    return ready;
  }
};

void ExpectSame(const Table& table, const Reference& reference) {
  const Ledger& ledger = table.ledger();
  ASSERT_TRUE(ledger.balanced());
  ASSERT_EQ(ledger.dispatched, static_cast<int64_t>(reference.attempts.size()));
  ASSERT_EQ(ledger.in_flight, reference.Count(Reference::kInFlight));
  ASSERT_EQ(ledger.pending, reference.Count(Reference::kPending));
  ASSERT_EQ(ledger.trained, reference.Count(Reference::kTrained));
  ASSERT_EQ(ledger.rejected_total(), reference.Count(Reference::kRejected));
  ASSERT_EQ(table.ready_groups(), static_cast<int64_t>(reference.Ready().size()));
}

void RunRandom(uint64_t seed) {
  Rng rng(seed);
  const auto group_size = static_cast<int32_t>(1 + rng.Below(4));
  Table table(group_size);
  Reference reference{.group_size = group_size};
  int64_t next_id = 1, learner_version = 0, last_batch = 0, trained = 0, committed = 0;
  std::map<int64_t, std::vector<int64_t>> batches;
  const auto any = [&]() -> Reference::Attempt* {
    if (reference.attempts.empty()) return nullptr;
    return &reference.attempts[rng.Below(reference.attempts.size())];
  };
  for (int step = 0; step < 400; ++step) {
    Reference::Attempt* a = any();
    switch (rng.Below(9)) {
      case 0:
      case 1:
      case 2: {
        const TrajectoryId id{
            .trajectory_id = next_id,
            .group_id = static_cast<int64_t>(rng.Below(12)),
            .member = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(group_size)))};
        const bool fits =
            !reference.Taken(id.group_id, id.member) && reference.closed.count(id.group_id) == 0;
        ASSERT_EQ(table.Dispatch(id).ok(), fits);
        if (fits) reference.attempts.push_back({.id = id});
        if (fits) ++next_id;
        break;
      }
      case 3:
      case 4: {
        if (a == nullptr) break;
        const int64_t version =
            std::max<int64_t>(0, learner_version - static_cast<int64_t>(rng.Below(3)));
        const bool fits = a->state == Reference::kInFlight;
        ASSERT_EQ(
            table.Pend(a->id, {.min_version = version, .memory_bytes = 10, .segment = 1}).ok(),
            fits);
        if (fits) a->state = Reference::kPending, a->version = version;
        break;
      }
      case 5: {
        if (a == nullptr) break;
        const bool fits =
            a->state == Reference::kInFlight || (a->state == Reference::kPending && a->batch == 0);
        ASSERT_EQ(table.Reject(a->id, RejectReason::kOutcome).ok(), fits);
        if (fits) a->state = Reference::kRejected;
        break;
      }
      case 6: {
        for (const TrajectoryId& id : table.RejectStale(learner_version, 2)) {
          Reference::Attempt* stale = reference.Find(id.trajectory_id);
          ASSERT_LT(stale->version, learner_version - 2);
          stale->state = Reference::kRejected;
        }
        const auto ready = reference.Ready();
        if (ready.empty()) break;
        ASSERT_GE(ready[0].first, learner_version - 2);
        const auto take = 1 + rng.Below(ready.size());
        const BatchState batch = table.Lease(static_cast<int64_t>(take), learner_version);
        ASSERT_EQ(batch.sequence, ++last_batch);
        std::vector<int64_t> expected;
        for (size_t i = 0; i < take; ++i) expected.push_back(ready[i].second);
        std::ranges::sort(expected);
        ASSERT_EQ(batch.groups, expected);
        for (Reference::Attempt& x : reference.attempts) {
          if (x.state == Reference::kPending && x.batch == 0 &&
              std::ranges::count(expected, x.id.group_id) > 0) {
            x.batch = batch.sequence;
          }
        }
        break;
      }
      case 7: {
        const bool commit = rng.Below(2) == 0 && trained > committed;
        if (!commit && trained == last_batch) break;
        if (commit) {
          committed = trained;
          ASSERT_TRUE(table.Commit(committed).ok());
        } else {
          ASSERT_TRUE(table.MarkTrained(++trained).ok());
          ++learner_version;
        }
        for (Reference::Attempt& x : reference.attempts) {
          if (x.batch > 0 && x.batch <= trained) x.state = Reference::kTrained;
          if (x.batch > 0 && x.batch <= committed) reference.closed.insert(x.id.group_id);
        }
        break;
      }
      default: {
        if (rng.Below(6) != 0) break;
        const auto group = static_cast<int64_t>(rng.Below(12));
        const bool leased =
            std::ranges::any_of(reference.attempts, [&](const Reference::Attempt& x) {
              return x.id.group_id == group && x.batch > committed;
            });
        const bool known = std::ranges::any_of(
            reference.attempts,
            [&](const Reference::Attempt& x) { return x.id.group_id == group; });
        std::vector<TrajectoryId> closed;
        const Status status = table.CloseGroup(group, &closed);
        ASSERT_EQ(status.code() == StatusCode::kFailedPrecondition, leased);
        if (leased) break;
        if (known) reference.closed.insert(group);
        for (const TrajectoryId& id : closed)
          reference.Find(id.trajectory_id)->state = Reference::kRejected;
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSame(table, reference)) << "step " << step;
    int64_t memory = 0;
    for (const Reference::Attempt& x : reference.attempts)
      memory += x.state == Reference::kPending ? 10 : 0;
    ASSERT_EQ(table.memory_bytes(), memory);
  }
  // What a log's snapshot would say: nothing is trained that is not committed.
  if (trained == committed) {
    const std::string bytes = table.EncodeSnapshot();
    const Result<Table> back = Table::DecodeSnapshot(bytes);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(back->EncodeSnapshot(), bytes);
    EXPECT_EQ(back->Missing(), table.Missing());
    EXPECT_EQ(back->Describe(), table.Describe());
    ExpectSame(*back, reference);
  }
}

TEST(Table, AgreesWithANaiveReference) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunRandom(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(Table, SnapshotRefusesDamage) {
  Table table(2);
  for (int64_t i = 0; i < 6; ++i) {
    const TrajectoryId id{
        .trajectory_id = i + 1, .group_id = i / 2, .member = static_cast<int32_t>(i % 2)};
    ASSERT_TRUE(table.Dispatch(id).ok());
    if (i < 5) {
      ASSERT_TRUE(table.Pend(id, {.min_version = 1}).ok());
    }
  }
  table.Lease(1, 1);
  const std::string good = table.EncodeSnapshot();
  ASSERT_TRUE(Table::DecodeSnapshot(good).ok());
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(Table::DecodeSnapshot(std::string_view(good).substr(0, n)).ok()) << n;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const Result<Table> back = Table::DecodeSnapshot(bad);  // never crashes
    if (back.ok()) {
      EXPECT_TRUE(back->ledger().balanced());
    }
  }
}

}  // namespace
}  // namespace forebay::buffer
