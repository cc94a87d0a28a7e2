// What the disk itself gives: the yardstick of the durable figures.
#pragma once

#include <memory>
#include <string>

#include "bench/buffer_runner.h"
#include "forebay/base/status.h"

namespace forebay::bench {

struct RawLimits {
  double bytes_per_s = 0;  // 1 MiB O_DIRECT|O_DSYNC writes, one after the other
  Percentiles write_16k;   // one 16 KiB O_DIRECT|O_DSYNC write
};

// One thread that overwrites a preallocated file of zeros in order. The file is gone with it.
class RawDisk {
 public:
  // Makes the file. kFailedPrecondition on a file system without O_DIRECT (tmpfs): what is measured
  // there is not durability.
  static Result<std::unique_ptr<RawDisk>> Create(const std::string& folder);
  ~RawDisk();
  RawDisk(const RawDisk&) = delete;
  RawDisk& operator=(const RawDisk&) = delete;

  // Half of the time for each of the two.
  Result<RawLimits> Measure(double seconds);

 private:
  struct State;
  explicit RawDisk(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace forebay::bench
