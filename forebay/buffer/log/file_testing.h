// A file system in memory that fails as disks do: short writes, full disks, I/O errors, failed
// flushes, and power loss that tears unsynced sectors. Everything follows from its seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"

namespace forebay::buffer {

// How often an operation fails, of a thousand.
struct DiskFaults {
  uint64_t write_error = 0;               // EIO; a part was written
  uint64_t write_full = 0;                // ENOSPC; a part was written
  uint64_t sync_error = 0;                // and what was not synced is lost
  uint64_t create_full = 0;               // ENOSPC
  int64_t disk_bytes = int64_t{1} << 40;  // all files together
};

// Thread-safe.
class SimDisk : public FileSystem {
 public:
  explicit SimDisk(uint64_t seed) : rng_(seed) {}

  Status MakeFolder(const std::string& path) override;
  Result<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override;
  Result<std::vector<std::string>> List(const std::string& folder) override;
  Result<std::unique_ptr<LogFile>> Create(const std::string& path, int64_t bytes) override;
  Result<std::string> Read(const std::string& path) override;
  Status SyncPath(const std::string& path) override;
  Status Rewrite(const std::string& path, std::string_view bytes) override;
  Status Truncate(const std::string& path, int64_t bytes) override;
  Status Remove(const std::string& path) override;
  Status SyncFolder(const std::string& folder) override;

  void SetFaults(const DiskFaults& faults);
  // The process dies: every later operation of it fails, and the disk keeps what was written.
  void Kill();
  // As Kill, and of what was not synced each sector survives by chance.
  void PowerLoss();
  // A new process begins; faults are off.
  void Restart();
  // Flips one bit of a written byte of a segment; false if there is none.
  bool FlipBit();
  int64_t faults_made() const;

  struct File;

 private:
  friend class SimFile;
  Status WriteAt(const std::shared_ptr<File>& file, int64_t generation, int64_t offset,
                 std::string_view bytes);
  Status SyncFile(const std::shared_ptr<File>& file, int64_t generation);
  Status SyncLocked(File& file) FB_REQUIRES(mutex_);
  bool Strikes(uint64_t per_thousand) FB_REQUIRES(mutex_);
  int64_t Used() const FB_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Rng rng_ FB_GUARDED_BY(mutex_);
  DiskFaults faults_ FB_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<File>> files_ FB_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<File>> durable_names_ FB_GUARDED_BY(mutex_);
  int64_t generation_ FB_GUARDED_BY(mutex_) = 1;  // of the process
  bool dead_ FB_GUARDED_BY(mutex_) = false;
  int64_t faults_made_ FB_GUARDED_BY(mutex_) = 0;
};

}  // namespace forebay::buffer
