// The wall clock jumps, by a day forth or back: no wait ends early or late, and nothing expires.
// This program has its own clock_gettime, so that it can move the wall clock and count who asks.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace {
std::atomic<int64_t> wall_jump_s{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += wall_jump_s.load();
  return result;
}

namespace forebay::buffer {
namespace {

constexpr int64_t kDay = 24 * 60 * 60;

class ClockTest : public testing::TestWithParam<int64_t> {
 protected:
  ~ClockTest() override { wall_jump_s = 0; }
  void Open(BufferOptions options) {
    options.group_size = 1;
    options.implied_dispatch = true;
    options.folder = folder_.path() + "/log";
    Result<std::unique_ptr<Buffer>> buffer = Buffer::Open(options, 0, {}, nullptr);
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    buffer_ = std::move(*buffer);
  }
  Status Play(int64_t id, double seconds = 30) {
    const TrajectoryId names{.trajectory_id = id, .group_id = id};
    return AppendAndWait(*buffer_, SimpleTrajectory(names, 1, 500, 4), seconds);
  }
  static void Jump() {
    const int64_t before = WallMicros();
    wall_jump_s = GetParam();
    // Else the test would say nothing.
    const int64_t jumped = (WallMicros() - before) / 1'000'000 - GetParam();
    ASSERT_TRUE(jumped >= 0 && jumped < 600) << jumped;
  }

  TestFolder folder_;
  std::unique_ptr<Buffer> buffer_;
};

TEST_P(ClockTest, TakesExpireByTheMonotonicClock) {
  Open({});
  for (int64_t id = 1; id <= 2; ++id) ASSERT_TRUE(Play(id).ok());
  const Result<Taken> held = buffer_->Take({.expires_after = std::chrono::hours(1)}, In(60));
  const Result<Taken> expires = buffer_->Take({.expires_after = std::chrono::seconds(1)}, In(60));
  ASSERT_TRUE(held.ok() && expires.ok());
  Jump();
  // A second later the one is free again, although nothing else wakes the keeper of the buffer; and
  // a day has not passed for the other.
  const Result<Taken> again = buffer_->Take({}, In(30));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->trajectories[0].id, expires->trajectories[0].id);
  EXPECT_EQ(buffer_->stats().expired_takes, 1);
  EXPECT_TRUE(buffer_->Acknowledge(held->take_id).ok());
  EXPECT_EQ(buffer_->Acknowledge(expires->take_id).code(), StatusCode::kNotFound);
}

TEST_P(ClockTest, WaitsKeepTheirDeadlines) {
  Open({});
  buffer_->Pause(true, false);
  // A lease and an append wait, with much time and with little.
  Status lease, append;
  std::thread learner([&] { lease = buffer_->Lease(1000, 1, In(3600)).status(); });
  std::thread actor([&] { append = Play(1, 3600); });
  Jump();
  EXPECT_EQ(buffer_->Lease(1000, 1, In(0.2)).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Play(2, 0.2).code(), StatusCode::kDeadlineExceeded);
  buffer_->Close();
  learner.join();
  actor.join();
  EXPECT_EQ(lease.code(), StatusCode::kUnavailable) << lease.ToString();
  EXPECT_EQ(append.code(), StatusCode::kUnavailable) << append.ToString();
}

INSTANTIATE_TEST_SUITE_P(Jumps, ClockTest, testing::Values(kDay, -kDay),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(info.param > 0 ? "Forth" : "Back");
                         });

}  // namespace
}  // namespace forebay::buffer
