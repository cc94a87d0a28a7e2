// Whole-file helpers and atomic replacement. The buffer's log has its own file layer (buffer/log).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay {

// The file's bytes. kNotFound, or kResourceExhausted above `bytes_max`.
Result<std::string> ReadFile(const std::string& path, size_t bytes_max = size_t{1} << 30);

// Writes path + ".tmp", syncs it, renames it over path and syncs the folder: after a crash the old
// or the new content is there, never a mixture.
Status WriteFileAtomic(const std::string& path, std::string_view content);

// Syncs a folder, so that renames in it survive power loss.
Status SyncFolder(const std::string& path);

// Makes the folder and its parents. OK if it is there.
Status MakeFolders(const std::string& path);

// "message: strerror(errno)" as a Status: ENOENT is kNotFound; what the machine lacks (ENOSPC,
// EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM) kResourceExhausted; what is wrong with a path (EACCES,
// EPERM, EROFS, ENOTDIR, EISDIR, ENAMETOOLONG, ELOOP) kFailedPrecondition; others kInternal.
Status ErrnoStatus(std::string_view message, int error);

// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { Close(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Close();

 private:
  int fd_ = -1;
};

}  // namespace forebay
