// A served table: its producer dies for good in the middle of a group. Whoever looks after the
// table finds the group and closes it: counted, and whatever comes late is not stored.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

constexpr size_t kClosed = static_cast<size_t>(RejectReason::kClosed);

TEST(PartialGroup, OfADeadProducerIsFoundAndClosed) {
  const TestFolder folder;
  Result<std::unique_ptr<Buffer>> buffer =
      Buffer::Open({.folder = folder.path() + "/train", .group_size = 2, .implied_dispatch = true},
                   0, {}, nullptr);
  ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
  auto server = Server::Start({{"train", {.buffer = buffer->get(), .group_size = 2}}},
                              {.listen = {"unix:" + folder.path() + "/buffer.sock"}});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const auto connect = [&](const std::string& producer) {
    auto client = Client::Connect({.address = (*server)->addresses()[0], .producer = producer});
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return std::move(*client);
  };
  const auto append = [](Client& client, int64_t group, int32_t member) {
    const TrajectoryId id{.trajectory_id = group + member, .group_id = group, .member = member};
    return (*client.Table("train"))->AppendEncodedAndWait(Encode(SimpleTrajectory(id, 1)), {});
  };

  auto dies = connect("dies");  // as far as anybody can see
  const int64_t orphan = dies->NewIds(2);
  ASSERT_TRUE(append(*dies, orphan, 0).ok());

  auto lives = connect("lives");
  RemoteTable& table = **lives->Table("train");
  const int64_t whole = lives->NewIds(2);
  ASSERT_TRUE(append(*lives, whole, 0).ok());
  ASSERT_TRUE(append(*lives, whole, 1).ok());
  // It holds nobody back, and is given to nobody.
  const Result<Taken> taken = table.Take({.learner_version = 1}, In(60));
  ASSERT_TRUE(taken.ok()) << taken.status().ToString();
  EXPECT_EQ(taken->trajectories[0].id.group_id, whole);
  ASSERT_TRUE(table.Acknowledge(taken->take_id).ok());
  EXPECT_EQ(table.Take({.learner_version = 1}, In(0.1)).status().code(),
            StatusCode::kDeadlineExceeded);

  const Result<std::vector<GroupInfo>> groups = table.Inspect(0, 10);
  ASSERT_TRUE(groups.ok());
  ASSERT_EQ(groups->size(), 1U);
  EXPECT_EQ((*groups)[0].group_id, orphan);
  EXPECT_EQ((*groups)[0].members[0], MemberState::kPending);
  EXPECT_EQ((*groups)[0].members[1], MemberState::kVacant);
  ASSERT_TRUE(table.CloseGroup(orphan).ok());
  EXPECT_EQ(table.ledger()->rejected[kClosed], 1);
  EXPECT_EQ(table.CloseGroup(orphan).code(), StatusCode::kNotFound);

  // It was not dead after all: its group is finished.
  const Status refused = append(*dies, orphan, 1);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.ToString();
  const Result<Ledger> ledger = table.ledger();
  EXPECT_TRUE(ledger->balanced());
  EXPECT_EQ(ledger->trained, 2);
  EXPECT_EQ(ledger->pending + ledger->in_flight, 0);
  EXPECT_TRUE(table.Inspect(0, 10)->empty());
}

}  // namespace
}  // namespace forebay::buffer
