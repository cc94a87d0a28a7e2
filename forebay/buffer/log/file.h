// The files of the log, behind an interface, so that tests can make a disk fail.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::buffer {

// A file that is written. One thread at a time.
class LogFile {
 public:
  virtual ~LogFile() = default;
  // All of `bytes` at `offset`, into the page cache. kResourceExhausted: the disk is full. After an
  // error any part may have been written.
  virtual Status Write(int64_t offset, std::string_view bytes) = 0;
  // What was written is on the device. After an error, what was written since the last success may
  // be lost, and asking again proves nothing: the kernel may have dropped the pages.
  virtual Status Sync() = 0;
};

// Held until destroyed.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};

// Thread-safe. Errors: ErrnoStatus (kNotFound, kResourceExhausted for a full disk, ...).
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Status MakeFolder(const std::string& path) = 0;
  // kFailedPrecondition when another holder, in any process, has it.
  virtual Result<std::unique_ptr<FolderLock>> Lock(const std::string& folder) = 0;
  // The names in the folder, sorted.
  virtual Result<std::vector<std::string>> List(const std::string& folder) = 0;
  // A new file of `bytes` zeros whose space is taken; nothing is left behind on an error.
  virtual Result<std::unique_ptr<LogFile>> Create(const std::string& path, int64_t bytes) = 0;
  virtual Result<std::string> Read(const std::string& path) = 0;
  // As LogFile::Sync, for a file that another process wrote.
  virtual Status SyncPath(const std::string& path) = 0;
  // Writes the beginning of the file again, and syncs it.
  virtual Status Rewrite(const std::string& path, std::string_view bytes) = 0;
  virtual Status Truncate(const std::string& path, int64_t bytes) = 0;
  virtual Status Remove(const std::string& path) = 0;
  // Creations and removals in the folder are on the device.
  virtual Status SyncFolder(const std::string& folder) = 0;
};

std::unique_ptr<FileSystem> MakeFileSystem();

}  // namespace forebay::buffer
