// The room that a log keeps for itself: notes never end it, and however often it is started, its
// disk limit holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/file_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

constexpr int64_t kSegmentBytes = int64_t{64} << 10;
constexpr int64_t kSegments = 6;

class SpaceTest : public testing::TestWithParam<Durability> {
 protected:
  void Open(bool manual) {
    core_.reset();
    disk_.Restart();
    Result<std::unique_ptr<Core>> core = Core::Open(&disk_,
                                                    {.folder = "log",
                                                     .durability = GetParam(),
                                                     .group_size = 2,
                                                     .segment_bytes = kSegmentBytes,
                                                     .disk_bytes_max = kSegments * kSegmentBytes},
                                                    0, events_.Listener(), nullptr, manual);
    ASSERT_TRUE(core.ok()) << core.status().ToString();
    core_ = std::move(*core);
  }
  // Appends halves of groups, which nobody can read, until they are refused.
  void FillUp() {
    while (true) {
      const TrajectoryId id = TestId(next_group_++, 0);
      ASSERT_TRUE(core_->Dispatch(id).ok());
      bool refused = false;
      const std::string encoded = Encode(SimpleTrajectory(id, 1, 4, 200));
      core_->AppendEncoded(encoded, {.deadline = Now()},
                           [&](const Status& status) { refused = !status.ok(); });
      core_->Pump();
      if (refused) return;
    }
  }

  SimDisk disk_{1};
  Events events_;
  std::unique_ptr<Core> core_;
  int64_t next_group_ = 0;
};

// Everything that lies in the log is needed, so only what the notes themselves took comes free.
TEST_P(SpaceTest, NotesGoOnWhileTheDiskIsFull) {
  Open(true);
  FillUp();
  const int64_t pending = core_->ledger().pending;
  disk_.SetFaults({.create_full = 1000});
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(core_->Dispatch(TestId(next_group_, 0, i)).ok()) << i;
    ASSERT_TRUE(core_->Reject(TestId(next_group_, 0, i), RejectReason::kOutcome).ok()) << i;
    core_->Pump();
  }
  EXPECT_TRUE(events_.Failures().empty());
  EXPECT_LE(disk_.used_bytes(), kSegments * kSegmentBytes);
  disk_.Kill();
  Open(true);
  EXPECT_GE(core_->ledger().pending, pending);
  EXPECT_TRUE(core_->ledger().balanced());
}

// Many more than any reserve holds, before anybody can free a segment.
TEST_P(SpaceTest, ABurstOfNotesPassesTheLimitRatherThanEndTheLog) {
  Open(true);
  FillUp();
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(core_->Dispatch(TestId(next_group_, 0, i)).ok()) << i;
    ASSERT_TRUE(core_->Reject(TestId(next_group_, 0, i), RejectReason::kOutcome).ok()) << i;
  }
  EXPECT_GT(disk_.used_bytes(), kSegments * kSegmentBytes);
  for (int i = 0; i < 5; ++i) core_->Pump();
  EXPECT_LE(disk_.used_bytes(), kSegments * kSegmentBytes);
  EXPECT_TRUE(events_.Failures().empty());
}

TEST_P(SpaceTest, CrashedStartsStayBelowTheLimit) {
  int64_t most = 0;
  for (int start = 0; start < 12; ++start) {
    Open(true);
    FillUp();
    most = std::max(most, disk_.used_bytes());
    disk_.Kill();
  }
  EXPECT_LE(most, kSegments * kSegmentBytes);
  Open(true);
  EXPECT_TRUE(core_->ledger().balanced());
  EXPECT_GT(core_->ledger().pending, 0);
}

INSTANTIATE_TEST_SUITE_P(Durabilities, SpaceTest,
                         testing::Values(Durability::kOs, Durability::kSync),
                         [](const testing::TestParamInfo<Durability>& info) {
                           return std::string(info.param == Durability::kOs ? "Os" : "Sync");
                         });

}  // namespace
}  // namespace forebay::buffer
