#include "forebay/buffer/buffer_testing.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {

TestFolder::TestFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "forebay_buffer_XXXXXX").string();
  FB_CHECK(::mkdtemp(pattern.data()) != nullptr, "mkdtemp");
  path_ = pattern;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TrajectoryId TestId(int64_t group, int32_t member, int32_t attempt) {
  return {.trajectory_id = 1 + (group * 16 + member) * 8 + attempt,
          .group_id = group,
          .member = member,
          .attempt = attempt,
          .task_id = 1000 + group};
}

Status AppendAndWait(Buffer& buffer, Trajectory trajectory, double seconds) {
  struct Shared {
    Mutex mutex;
    CondVar wake;
    bool told = false;
    Status status;
  };
  auto shared = std::make_shared<Shared>();
  const TimePoint deadline = In(seconds);
  buffer.Append(std::move(trajectory), deadline, [shared](const Status& status) {
    MutexLock lock(shared->mutex);
    shared->told = true;
    shared->status = status;
    shared->wake.NotifyAll();
  });
  MutexLock lock(shared->mutex);
  while (!shared->told) {
    if (!shared->wake.WaitUntil(shared->mutex, deadline + FromSeconds(60)) && !shared->told) {
      return Internal("done was never called");
    }
  }
  return shared->status;
}

Status PlayGroup(Buffer& buffer, int64_t group, int32_t group_size, int64_t version) {
  for (int32_t member = 0; member < group_size; ++member) {
    FB_RETURN_IF_ERROR(buffer.Dispatch(TestId(group, member)));
    FB_RETURN_IF_ERROR(AppendAndWait(buffer, SimpleTrajectory(TestId(group, member), version)));
  }
  return OkStatus();
}

BufferListener Events::Listener() {
  BufferListener listener;
  listener.on_rejected = [this](const TrajectoryId& id, RejectReason reason) {
    MutexLock lock(mutex_);
    rejected_.emplace_back(id, reason);
  };
  listener.on_pending = [this](const TrajectoryId& id) {
    MutexLock lock(mutex_);
    pending_.push_back(id);
  };
  listener.on_failure = [this](const Status& why) {
    MutexLock lock(mutex_);
    failures_.push_back(why);
  };
  return listener;
}

std::vector<TrajectoryId> Events::Rejected(RejectReason reason) const {
  MutexLock lock(mutex_);
  std::vector<TrajectoryId> ids;
  for (const auto& [id, why] : rejected_) {
    if (why == reason) ids.push_back(id);
  }
  return ids;
}

std::vector<TrajectoryId> Events::Pending() const {
  MutexLock lock(mutex_);
  return pending_;
}

std::vector<Status> Events::Failures() const {
  MutexLock lock(mutex_);
  return failures_;
}

}  // namespace forebay::buffer
