// CheckpointWriter: writes checkpoints on a thread of its own, so that the device never waits for a
// disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/learner/checkpoint.h"

namespace forebay::learner {

// What became of one checkpoint.
struct CheckpointReport {
  int64_t step = 0;
  int64_t committed_batch = 0;
  // No replay needs batches up to here any more (ReleasableBatch); 0 after a failure.
  int64_t releasable_batch = 0;
  std::string path;
  double seconds = 0;
  Status status;
};

// At most one checkpoint in flight. TryWrite and Wait: one thread at a time.
class CheckpointWriter {
 public:
  struct Options {
    std::string folder;
    int64_t keep = 2;
  };
  // `written` runs on the writer's thread after each attempt, successful or not.
  CheckpointWriter(Options options, std::function<void(const CheckpointReport&)> written);
  // Finishes what is in flight.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  bool busy() const;
  // Starts writing; false (and nothing happens) while busy. Never blocks.
  bool TryWrite(CheckpointData data);
  // Blocks until nothing is in flight. The status of the last checkpoint (OK if there was none);
  // kDeadlineExceeded.
  Status Wait(TimePoint deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay::learner
