// A folder for the data of one run of the buffer benchmark.
#pragma once

#include <string>

#include "forebay/base/status.h"

namespace forebay::bench {

// Beside the running program, so on the build tree's disk. Gone with it; what a killed run left
// there goes when the next one is made.
class ScratchFolder {
 public:
  // kFailedPrecondition when that is memory, not a disk.
  static Result<ScratchFolder> Create();
  ~ScratchFolder();
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path);
  std::string path_;
};

}  // namespace forebay::bench
