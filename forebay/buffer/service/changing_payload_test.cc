// Goal: a client that changes a payload in shared memory while the server takes it in damages its
// own record at worst: the id that was checked is the id that is stored.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/buffer/service/shared_area.h"
#include "forebay/trajectory/trajectory.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

using std::chrono::seconds;

constexpr AreaSizes kSizes{.append_bytes = 1 << 20, .reply_bytes = 0};
constexpr size_t kIdAt = 28;  // of trajectory_id in an encoded trajectory
constexpr int64_t kAppends = 500;

class ChangingPayloadTest : public testing::TestWithParam<Durability> {};

TEST_P(ChangingPayloadTest, TheIdThatIsCheckedIsTheIdThatIsStored) {
  TempFolder folder;
  Recovery recovery;
  auto buffer = Buffer::Open({.folder = folder.path() + "/log",
                              .durability = GetParam(),
                              .group_size = 1,
                              .segment_bytes = 4 << 20,
                              .implied_dispatch = true},
                             0, {}, &recovery);
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  ServerOptions options;
  options.listen = {"unix:" + folder.path() + "/s.sock"};
  auto server = Server::Start({{"train", {.buffer = buffer->get(), .group_size = 1}}}, options);
  ASSERT_TRUE(server.ok()) << server.status().message();
  auto victim = Client::Connect({.address = options.listen[0], .producer = "victim"});
  ASSERT_TRUE(victim.ok()) << victim.status().message();
  RemoteTable* const table = *(*victim)->Table("train");
  const int64_t theirs = (*victim)->NewIds(kAppends);

  RawClient raw(options.listen[0]);
  ASSERT_TRUE(raw.Greet("hostile", "", 2));
  // The same sequences, of another producer.
  const int64_t own = (raw.welcome().producer_number << 40) + theirs % (int64_t{1} << 40);
  const auto area = raw.Share(kSizes);
  ASSERT_NE(area, nullptr);
  const std::string record = Record(own, 0, 0, 16'000);
  ASSERT_EQ(PeekId(record)->trajectory_id, own);
  char* const at = area->Append(4, record.size());  // so that the id is aligned
  std::memcpy(at, record.data(), record.size());
  ASSERT_EQ(reinterpret_cast<uintptr_t>(at + kIdAt) % 8, 0U);
  const std::atomic_ref<int64_t> id(*reinterpret_cast<int64_t*>(at + kIdAt));
  const std::atomic_ref<int64_t> group(*reinterpret_cast<int64_t*>(at + kIdAt + 8));
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    while (!stop) id.fetch_xor(own ^ theirs);
  });
  int64_t acknowledged = 0;
  for (int64_t i = 0; i < kAppends; ++i, ++id, ++group) {
    const auto piece = EncodeSharedPiece({.offset = 4, .bytes = record.size()});
    EXPECT_TRUE(raw.Send(FrameBytes({.type = FrameType::kAppendShared,
                                     .request = static_cast<uint64_t>(i) + 1,
                                     .argument = 60'000},
                                    {piece.data(), piece.size()})));
    const std::optional<RawFrame> answer = raw.Next();
    if (!answer.has_value()) break;
    acknowledged += static_cast<int64_t>(answer->header.type == FrameType::kAppended);
  }
  stop = true;
  changes.join();

  // Nobody has appended the victim's.
  for (int64_t i = 0; i < kAppends; ++i) {
    const std::string mine = Record(theirs + i, kAppends + i, 0, 200);
    ASSERT_TRUE(table->AppendEncodedAndWait(mine, {.deadline = Now() + seconds(60)}).ok()) << i;
  }
  EXPECT_EQ((*buffer)->stats().duplicates, 0);
  int64_t taken = 0, damaged = 0;
  for (; (*buffer)->stats().ready_groups > 0; ++taken) {
    const auto one = (*buffer)->Take({}, Now() + seconds(60));
    ASSERT_TRUE(one.ok()) << one.status().message();
    const TrajectoryView& view = one->trajectories.at(0);
    const std::optional<TrajectoryId> inside = PeekId(view.encoded);
    damaged += static_cast<int64_t>(!inside.has_value());
    EXPECT_EQ(inside.value_or(view.id), view.id);
    ASSERT_TRUE((*buffer)->Acknowledge(one->take_id).ok());
  }
  EXPECT_EQ(taken, acknowledged + kAppends);
  RecordProperty("acknowledged", static_cast<int>(acknowledged));
  RecordProperty("damaged", static_cast<int>(damaged));
}

INSTANTIATE_TEST_SUITE_P(Durabilities, ChangingPayloadTest,
                         testing::Values(Durability::kMemory, Durability::kOs, Durability::kSync),
                         [](const testing::TestParamInfo<Durability>& info) {
                           return std::string(info.param == Durability::kMemory ? "Memory"
                                              : info.param == Durability::kOs   ? "Os"
                                                                                : "Sync");
                         });

}  // namespace
}  // namespace forebay::buffer
