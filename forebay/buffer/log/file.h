// The files of the log, behind an interface, so that tests can make a disk fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::buffer {

// Addresses, offsets and sizes of durable writes are multiples of it.
inline constexpr size_t kBlockBytes = 4096;
// So many bytes, filled up to whole blocks.
constexpr int64_t WholeBlocks(int64_t bytes) {
  constexpr auto kBlock = static_cast<int64_t>(kBlockBytes);
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// An open file. Thread-safe as far as the ranges of concurrent calls are disjoint.
class LogFile {
 public:
  virtual ~LogFile() = default;
  // Of a file that was created written: all of `bytes` at `offset`, on the device when it returns
  // (O_DIRECT | O_DSYNC). Multiples of kBlockBytes. After an error any part may have been written,
  // and trying again proves nothing: the kernel may have dropped what it could not write.
  virtual Status WriteDurable(int64_t offset, std::string_view bytes) = 0;
  // All of `bytes` at `offset`, into the page cache. kResourceExhausted: the disk is full.
  virtual Status Write(int64_t offset, std::string_view bytes) = 0;
  // What Write and the mapping hold is on the device.
  virtual Status Sync() = 0;
  // The whole file as shared memory that outlives the process; valid as long as this object. A page
  // that cannot be read ends the process by SIGBUS, so it is for files that this process fills.
  virtual Result<char*> Map() = 0;
  // Fills `out`, unless the file is shorter (kDataLoss).
  virtual Status ReadAt(int64_t offset, char* out, size_t bytes) = 0;
  virtual int64_t bytes() const = 0;
  // ReadAt of this range comes soon: whoever reads many places waits for them together.
  virtual void WillRead(int64_t /*offset*/, int64_t /*bytes*/) {}
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
  // A new file of `bytes` zeros. `written`: the zeros are really written, so that later durable
  // writes change no metadata (a multiple of kBlockBytes then); else the space is only taken.
  // Nothing is left behind on an error. kAlreadyExists.
  virtual Result<std::unique_ptr<LogFile>> Create(const std::string& path, int64_t bytes,
                                                  bool written) = 0;
  virtual Result<std::unique_ptr<LogFile>> Open(const std::string& path) = 0;
  virtual Result<std::string> Read(const std::string& path) = 0;
  virtual Status Truncate(const std::string& path, int64_t bytes) = 0;
  virtual Status Remove(const std::string& path) = 0;
  // Creations and removals in the folder are on the device.
  virtual Status SyncFolder(const std::string& folder) = 0;
};

std::unique_ptr<FileSystem> MakeFileSystem();

}  // namespace forebay::buffer
