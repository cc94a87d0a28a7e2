// A disk that stays full, or cannot be written, while appends wait: they are told why, and after a
// minute the log ends. This program has its own clock_gettime, so that the minute takes no time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
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

namespace {
std::atomic<int64_t> passed_s{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_MONOTONIC) time->tv_sec += passed_s.load();
  return result;
}

namespace forebay::buffer {
namespace {

using std::chrono::hours;
using testing::HasSubstr;

class BadDiskTest : public testing::Test {
 protected:
  void Open(Durability durability) {
    Result<std::unique_ptr<Core>> core = Core::Open(&disk_,
                                                    {.folder = "log",
                                                     .durability = durability,
                                                     .group_size = 1,
                                                     .segment_bytes = int64_t{64} << 10,
                                                     .disk_bytes_max = int64_t{6} * (64 << 10),
                                                     .implied_dispatch = true},
                                                    0, events_.Listener(), nullptr, true);
    ASSERT_TRUE(core.ok()) << core.status().ToString();
    core_ = std::move(*core);
  }
  // Appends the next one; answered_ is how that ended, if it has.
  void Append(TimePoint deadline) {
    answered_.reset();
    const TrajectoryId id{.trajectory_id = next_id_, .group_id = next_id_};
    ++next_id_;
    core_->AppendEncoded(Encode(SimpleTrajectory(id, 1, 4, 200)), {.deadline = deadline},
                         [this](const Status& status) { answered_ = status; });
  }
  // Until one waits for room.
  void FillUp() {
    do {
      ASSERT_LT(next_id_, 10'000);
      Append(Now() + hours(1));
      core_->Pump();
    } while (answered_.has_value());
  }
  static void Pass(int64_t seconds) {
    const TimePoint before = Now();
    passed_s += seconds;
    ASSERT_GE(Now() - before, std::chrono::seconds(seconds));  // else the test would say nothing
  }
  // Not before a minute, then with this reason.
  void ExpectTheEndAfterAMinute(const std::string& reason) {
    core_->Pump();
    Pass(50);
    core_->Pump();
    EXPECT_TRUE(events_.Failures().empty());
    EXPECT_FALSE(answered_.has_value());
    Pass(20);
    core_->Pump();
    core_->Pump();  // tells
    ASSERT_EQ(events_.Failures().size(), 1U);
    EXPECT_THAT(events_.Failures()[0].message(), HasSubstr(reason));
    ASSERT_TRUE(answered_.has_value());
    EXPECT_EQ(answered_->code(), StatusCode::kUnavailable);
    EXPECT_THAT(answered_->message(), HasSubstr(reason));
  }

  SimDisk disk_{1};
  Events events_;
  std::unique_ptr<Core> core_;
  std::optional<Status> answered_;
  int64_t next_id_ = 1;
};

TEST_F(BadDiskTest, AFullDisk) {
  Open(Durability::kSync);
  disk_.SetFaults({.create_full = 1000});
  FillUp();
  ExpectTheEndAfterAMinute("the disk stayed full for 60 s while appends waited");
}

// With kOs only the state files are written by calls that can fail; without them nothing is freed.
TEST_F(BadDiskTest, StateFilesThatCannotBeWritten) {
  Open(Durability::kOs);
  disk_.SetFaults({.write_error = 1000});
  FillUp();
  Append(Now());
  core_->Pump();
  ASSERT_TRUE(answered_.has_value());
  EXPECT_EQ(answered_->code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(answered_->message(), HasSubstr("the buffer stayed full"));
  EXPECT_THAT(answered_->message(), HasSubstr("a state file cannot be written: cannot write"));
  Append(Now() + hours(1));
  ExpectTheEndAfterAMinute("the disk failed for 60 s while appends waited");
}

TEST_F(BadDiskTest, StateFilesThatCanBeWrittenAgainInTime) {
  Open(Durability::kOs);
  disk_.SetFaults({.write_error = 1000});
  FillUp();
  core_->Pump();
  Pass(50);
  core_->Pump();
  disk_.SetFaults({});
  core_->Pump();
  Pass(50);  // it is a buffer that is full, nothing else
  core_->Pump();
  core_->Pump();
  EXPECT_TRUE(events_.Failures().empty());
  EXPECT_FALSE(answered_.has_value());
  // A reader makes room.
  while (!answered_.has_value()) {
    const Result<Taken> taken = core_->Take({.groups = 1, .learner_version = 1}, Now());
    ASSERT_TRUE(taken.ok()) << taken.status().ToString();
    ASSERT_TRUE(core_->Acknowledge(taken->take_id).ok());
    core_->Pump();
  }
  EXPECT_TRUE(answered_->ok()) << answered_->ToString();
}

// A segment that was made and cannot be used is neither kept nor counted, however often it is
// tried.
TEST_F(BadDiskTest, AFolderThatCannotBeSyncedFillsNoDisk) {
  Open(Durability::kSync);
  disk_.SetFaults({.folder_error = 1000});
  FillUp();
  const int64_t bytes = core_->stats().disk_bytes;
  EXPECT_EQ(disk_.used_bytes(), bytes);
  for (int i = 0; i < 10; ++i) core_->Pump();
  EXPECT_EQ(disk_.used_bytes(), bytes);
  EXPECT_EQ(core_->stats().disk_bytes, bytes);
  ExpectTheEndAfterAMinute("cannot sync the folder");
}

// They wait for the operator, not for the disk.
TEST_F(BadDiskTest, PausedAppendsDoNotEndTheLog) {
  Open(Durability::kOs);
  core_->Pause(true, false);
  disk_.SetFaults({.write_error = 1000});
  Append(Now() + hours(1));
  core_->Pump();
  Pass(100);
  core_->Pump();
  Pass(100);
  core_->Pump();
  EXPECT_TRUE(events_.Failures().empty());
  disk_.SetFaults({});
  core_->Pause(false, false);
  core_->Pump();
  ASSERT_TRUE(answered_.has_value());
  EXPECT_TRUE(answered_->ok()) << answered_->ToString();
}

}  // namespace
}  // namespace forebay::buffer
