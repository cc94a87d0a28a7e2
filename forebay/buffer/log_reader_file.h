// How the tools read a folder that they do not own: nothing in it is trusted, nothing is changed.
// Private to log_reader*.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/segment.h"

namespace forebay::buffer {

// Larger files are not read: no segment and no state file is.
inline constexpr int64_t kToolFileBytesMax = kSegmentBytesMax;

// A file that may be anything and may change while it is read: opened without waiting (a pipe would
// block), refused unless it is a regular file. What writes fails as kFailedPrecondition.
class ReadOnlyFile : public LogFile {
 public:
  static Result<std::unique_ptr<ReadOnlyFile>> Open(const std::string& path);

  Status WriteDurable(int64_t offset, std::string_view bytes) override;
  Status Write(int64_t offset, std::string_view bytes) override;
  Status Sync() override;
  Result<char*> Map() override;
  Status ReadAt(int64_t offset, char* out, size_t bytes) override;
  int64_t bytes() const override { return bytes_; }
  // From `offset` to `end`, or to the end of the file if that is before. Blocks that the disk
  // cannot read any more are zeros and counted in *unreadable_bytes, so that what lies around them
  // can be used. kResourceExhausted above kToolFileBytesMax.
  Result<std::string> ReadRange(int64_t offset, int64_t end, int64_t* unreadable_bytes);

 private:
  ReadOnlyFile(std::string path, Fd fd, int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  const std::string path_;
  Fd fd_;
  int64_t bytes_ = 0;  // when it was opened
};

// The names in the folder, sorted. kNotFound, kFailedPrecondition when it is no folder.
Result<std::vector<std::string>> ListFolder(const std::string& folder);

}  // namespace forebay::buffer
