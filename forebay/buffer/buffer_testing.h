// What the tests of the buffer share: folders, ids, and calls that wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// A new folder that goes with the object.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline TimePoint In(double seconds) { return Now() + FromSeconds(seconds); }

// Ids by one rule: attempt `attempt` of member `member` of group `group`, in groups of up to 16.
TrajectoryId TestId(int64_t group, int32_t member, int32_t attempt = 0);

// Appends and waits for the answer.
Status AppendAndWait(Buffer& buffer, Trajectory trajectory, double seconds = 30);

// Dispatches and appends every member of the group, sampled at `version`.
Status PlayGroup(Buffer& buffer, int64_t group, int32_t group_size, int64_t version);

// Remembers what a listener was told.
class Events {
 public:
  BufferListener Listener();
  std::vector<TrajectoryId> Rejected(RejectReason reason) const;
  std::vector<TrajectoryId> Pending() const;
  std::vector<Status> Failures() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<TrajectoryId, RejectReason>> rejected_ FB_GUARDED_BY(mutex_);
  std::vector<TrajectoryId> pending_ FB_GUARDED_BY(mutex_);
  std::vector<Status> failures_ FB_GUARDED_BY(mutex_);
};

}  // namespace forebay::buffer
