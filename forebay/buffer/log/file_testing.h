// A file system in memory that fails as disks do: short writes, full disks, I/O errors, failed
// flushes, power loss that tears unsynced sectors and forgets unsynced names, and crashes in the
// middle of any operation. Everything follows from its seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
  uint64_t open_full = 0;                 // EMFILE
  uint64_t read_error = 0;                // EIO
  uint64_t folder_error = 0;              // EIO of SyncFolder
  int64_t disk_bytes = int64_t{1} << 40;  // all files together
};

// Thread-safe.
class SimDisk : public FileSystem {
 public:
  explicit SimDisk(uint64_t seed) : rng_(seed) {}

  Status MakeFolder(const std::string& path) override;
  // A process of an earlier generation gives its lock back by dying.
  Result<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override;
  Result<std::vector<std::string>> List(const std::string& folder) override;
  Result<std::unique_ptr<LogFile>> Create(const std::string& path, int64_t bytes,
                                          bool written) override;
  Result<std::unique_ptr<LogFile>> Open(const std::string& path) override;
  Result<std::string> Read(const std::string& path) override;
  Status Truncate(const std::string& path, int64_t bytes) override;
  Status Remove(const std::string& path) override;
  Status SyncFolder(const std::string& folder) override;

  void SetFaults(const DiskFaults& faults);
  // The process dies: every later operation of it fails, what it stores through a mapping goes
  // nowhere, and the disk keeps what was written.
  void Kill();
  // As Kill, and of what was not synced each sector, and each name, survives by chance.
  void PowerLoss();
  // The same in the middle of the n-th operation from now that changes the disk (0: the next):
  // a part of it happens.
  void KillIn(uint64_t operations);
  void PowerLossIn(uint64_t operations);
  bool dead() const;
  // A new process begins; faults are off.
  void Restart();

  enum class Where { kAnywhere, kSegmentHeader, kRecord, kIndex, kState };
  // Flips one bit of a written byte; false if there is none of that kind.
  bool FlipBit(Where where = Where::kAnywhere);
  int64_t faults_made() const;
  int64_t used_bytes() const;  // of all files whose name contains "segment-", but quarantined ones

  struct File;

 private:
  friend class SimFile;
  enum class Strike { kNone, kDies, kDead };
  Status WriteAt(const std::shared_ptr<File>& file, int64_t generation, int64_t offset,
                 std::string_view bytes, bool durable);
  Status SyncFile(const std::shared_ptr<File>& file, int64_t generation);
  Status ReadAt(const std::shared_ptr<File>& file, int64_t generation, int64_t offset, char* out,
                size_t bytes);
  Result<std::shared_ptr<std::string>> MapFile(const std::shared_ptr<File>& file,
                                               int64_t generation);
  Strike Next() FB_REQUIRES(mutex_);
  bool Strikes(uint64_t per_thousand) FB_REQUIRES(mutex_);
  void Die(bool power) FB_REQUIRES(mutex_);
  void LosePower() FB_REQUIRES(mutex_);
  void Store(File& file, size_t at, std::string_view bytes, bool durable) FB_REQUIRES(mutex_);
  Status Sync(File& file, bool dies) FB_REQUIRES(mutex_);
  int64_t Used() const FB_REQUIRES(mutex_);
  // Executes what `change` does to the names, or not, when the process dies in it.
  template <typename Change>
  Status ChangeNames(const Change& change) FB_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Rng rng_ FB_GUARDED_BY(mutex_);
  DiskFaults faults_ FB_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<File>> files_ FB_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<File>> durable_names_ FB_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> locks_ FB_GUARDED_BY(mutex_);  // folder -> generation
  int64_t generation_ FB_GUARDED_BY(mutex_) = 1;                // of the process
  bool dead_ FB_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> dies_in_ FB_GUARDED_BY(mutex_);
  bool dies_by_power_ FB_GUARDED_BY(mutex_) = false;
  int64_t faults_made_ FB_GUARDED_BY(mutex_) = 0;
};

}  // namespace forebay::buffer
