// Goal: every message is read back as it was written, and no prefix, extension or wild value of one
// passes.
#include "forebay/buffer/service/messages.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/bytes.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

// `parses` must accept the whole and nothing shorter or longer.
void ExpectExact(const std::string& bytes, const std::function<bool(std::string_view)>& parses) {
  EXPECT_TRUE(parses(bytes));
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(parses(std::string_view(bytes).substr(0, n))) << n << " of " << bytes.size();
  }
  EXPECT_FALSE(parses(bytes + '\0'));
}

TEST(Messages, Hello) {
  const std::string bytes = EncodeHello(
      {.version_min = 1, .version_max = 3, .token = "secret", .producer = "a", .secret = {1, 2}});
  const auto hello = ParseHello(bytes);
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(hello->version_max, 3);
  EXPECT_EQ(hello->token, "secret");
  EXPECT_EQ(hello->producer, "a");
  EXPECT_EQ(hello->secret[1], 2);
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(ParseHello(std::string_view(bytes).substr(0, n)).ok()) << n;
  }
  // A later version may say more than this one can read.
  ByteWriter later;
  later.Put(uint32_t{0x50424246});
  later.Put(uint16_t{9});
  later.Put(uint16_t{12});
  const auto parsed = ParseHello(std::move(later).Take());
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->version_min, 9);
}

TEST(Messages, Welcome) {
  const std::string bytes =
      EncodeWelcome({.version = 1,
                     .credit_bytes = 5,
                     .ping_ms = 6,
                     .idle_ms = 7,
                     .producer_number = 8,
                     .epoch = 9,
                     .secret = {1},
                     .tables = {{"train", true, 8, 100}, {"eval", false, 1, 200}}});
  const auto welcome = ParseWelcome(bytes);
  ASSERT_TRUE(welcome.ok());
  ASSERT_EQ(welcome->tables.size(), 2U);
  EXPECT_EQ(welcome->tables[1].name, "eval");
  EXPECT_EQ(welcome->tables[0].group_size, 8);
  EXPECT_EQ(welcome->epoch, 9);
  ExpectExact(bytes, [](std::string_view b) { return ParseWelcome(b).ok(); });
}

TEST(Messages, Requests) {
  ExpectExact(EncodeTake({.groups = 3, .learner_version = 4, .selector = Selector::kPriority}),
              [](std::string_view b) { return ParseTake(b).ok(); });
  EXPECT_FALSE(ParseTake(EncodeTake({.groups = 0})).ok());
  EXPECT_FALSE(ParseTake(EncodeTake({.groups = int64_t{1} << 40})).ok());
  EXPECT_FALSE(ParseTake(EncodeTake({.expires_ms = 0})).ok());
  EXPECT_FALSE(ParseTake(EncodeTake({.selector = static_cast<Selector>(9)})).ok());
  ExpectExact(EncodeLease({.groups = 3}),
              [](std::string_view b) { return ParseLeaseRequest(b).ok(); });
  EXPECT_FALSE(ParseLeaseRequest(EncodeLease({.groups = -1})).ok());
  ExpectExact(EncodeReadBatch({.sequence = 1, .shard = 1, .shards = 2}),
              [](std::string_view b) { return ParseReadBatch(b).ok(); });
  EXPECT_FALSE(ParseReadBatch(EncodeReadBatch({.sequence = 1, .shard = 2, .shards = 2})).ok());
  EXPECT_FALSE(ParseReadBatch(EncodeReadBatch({.sequence = 1, .shard = 0, .shards = 0})).ok());
  ExpectExact(EncodeNumber(7), [](std::string_view b) { return ParseNumber(b).ok(); });
  EXPECT_FALSE(ParseNumber(EncodeNumber(-7)).ok());
  ExpectExact(EncodeId({.trajectory_id = 1, .group_id = 2, .member = 3}),
              [](std::string_view b) { return ParseId(b).ok(); });
  EXPECT_FALSE(ParseId(EncodeId({.trajectory_id = -1})).ok());
  ExpectExact(EncodeInspect({.from = 1, .limit = 2}),
              [](std::string_view b) { return ParseInspect(b).ok(); });
  EXPECT_FALSE(ParseInspect(EncodeInspect({.from = 0, .limit = 1 << 30})).ok());
}

TEST(Messages, Taken) {
  const std::string one = Record(1, 10);
  const std::string two = Record(2, 10, 1);
  Taken taken{.take_id = 77};
  taken.trajectories = {{.id = {.trajectory_id = 1, .group_id = 10, .task_id = 5},
                         .min_version = 3,
                         .priority = 0.5F,
                         .encoded = one},
                        {.id = {.trajectory_id = 2, .group_id = 10, .member = 1}, .encoded = two}};
  const std::string bytes = EncodeTakenIndex(taken) + one + two;
  const auto parsed = ParseTaken(bytes);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->take_id, 77);
  ASSERT_EQ(parsed->trajectories.size(), 2U);
  EXPECT_EQ(parsed->trajectories[0].encoded, one);
  EXPECT_EQ(parsed->trajectories[1].encoded, two);
  EXPECT_EQ(parsed->trajectories[0].id, taken.trajectories[0].id);
  EXPECT_EQ(parsed->trajectories[0].min_version, 3);
  EXPECT_EQ(parsed->trajectories[0].priority, 0.5F);
  ExpectExact(bytes, [](std::string_view b) { return ParseTaken(b).ok(); });
  // A count that would need more memory than the message has.
  std::string wild = bytes;
  wild[11] = '\x7f';
  EXPECT_FALSE(ParseTaken(wild).ok());
}

TEST(Messages, Batch) {
  Rng rng(3);
  Batch batch{.sequence = 4, .learner_version = 5, .replay = true};
  for (int i = 0; i < 3; ++i) {
    batch.trajectories.push_back(std::make_shared<const Trajectory>(RandomTrajectory(rng, 20)));
  }
  const std::string bytes = EncodeBatch(batch);
  const auto parsed = ParseBatch(bytes);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->sequence, 4);
  EXPECT_TRUE(parsed->replay);
  ASSERT_EQ(parsed->trajectories.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*parsed->trajectories[i], *batch.trajectories[i]);
  ExpectExact(bytes, [](std::string_view b) { return ParseBatch(b).ok(); });
}

TEST(Messages, GroupsAndStats) {
  const std::vector<GroupInfo> groups = {{.group_id = 4,
                                          .batch = 5,
                                          .take_id = 6,
                                          .min_version = 7,
                                          .members = {MemberState::kPending, MemberState::kVacant}},
                                         {.group_id = 9}};
  const std::string bytes = EncodeGroups(groups);
  const auto parsed = ParseGroups(bytes);
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed->size(), 2U);
  EXPECT_EQ((*parsed)[0].members, groups[0].members);
  EXPECT_EQ((*parsed)[0].take_id, 6);
  ExpectExact(bytes, [](std::string_view b) { return ParseGroups(b).ok(); });

  Ledger ledger{.dispatched = 9, .trained = 1, .pending = 2, .in_flight = 3};
  ledger.rejected[2] = 3;
  const std::string stats =
      EncodeStats(ledger, {.ready_groups = 4, .expired_takes = 6, .append_wait_seconds = 1.5});
  Ledger ledger_back;
  BufferStats stats_back;
  ASSERT_TRUE(ParseStats(stats, &ledger_back, &stats_back).ok());
  EXPECT_EQ(ledger_back.rejected[2], 3);
  EXPECT_TRUE(ledger_back.balanced());
  EXPECT_EQ(stats_back.expired_takes, 6);
  EXPECT_EQ(stats_back.append_wait_seconds, 1.5);
  ExpectExact(stats, [](std::string_view b) {
    Ledger l;
    BufferStats s;
    return ParseStats(b, &l, &s).ok();
  });
}

TEST(Messages, SharedMemory) {
  const auto sizes =
      ParseAreaSizes(EncodeAreaSizes({.append_bytes = 7, .reply_bytes = 1ULL << 40}));
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->append_bytes, 7U);
  EXPECT_EQ(sizes->total(), (1ULL << 40) + 7);
  const auto bytes = EncodeSharedPiece({.offset = 5, .bytes = 6});
  const auto piece = ParseSharedPiece({bytes.data(), bytes.size()});
  ASSERT_TRUE(piece.ok());
  EXPECT_EQ(piece->offset, 5U);
  EXPECT_EQ(piece->bytes, 6U);
  EXPECT_FALSE(ParseAreaSizes("short").ok());
  EXPECT_FALSE(ParseSharedPiece({bytes.data(), bytes.size() - 1}).ok());
}

TEST(Messages, NoBytesCrashAParser) {
  Rng rng(11);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(rng.Below(120), '\0');
    for (char& c : bytes) c = static_cast<char>(rng.Below(3) == 0 ? rng.Below(256) : rng.Below(3));
    const bool any = ParseHello(bytes).ok() || ParseWelcome(bytes).ok() || ParseTake(bytes).ok() ||
                     ParseTaken(bytes).ok() || ParseBatch(bytes).ok() || ParseGroups(bytes).ok() ||
                     ParseAreaSizes(bytes).ok() || ParseSharedPiece(bytes).ok();
    (void)any;
  }
}

}  // namespace
}  // namespace forebay::buffer
