#include "forebay/buffer/log/file_testing.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"

namespace forebay::buffer {
namespace {
constexpr size_t kSector = 512;
}  // namespace

struct SimDisk::File {
  std::string now;         // as the process sees it
  std::string durable;     // as the device has it
  std::set<size_t> dirty;  // sectors that differ
};

class SimFile : public LogFile {
 public:
  SimFile(SimDisk* disk, std::shared_ptr<SimDisk::File> file, int64_t generation)
      : disk_(disk), file_(std::move(file)), generation_(generation) {}
  Status Write(int64_t offset, std::string_view bytes) override {
    return disk_->WriteAt(file_, generation_, offset, bytes);
  }
  Status Sync() override { return disk_->SyncFile(file_, generation_); }

 private:
  SimDisk* disk_;
  std::shared_ptr<SimDisk::File> file_;
  int64_t generation_;
};

namespace {
class NoLock : public FolderLock {};
Status Dead() { return ErrnoStatus("the simulated process is dead", EIO); }
}  // namespace

bool SimDisk::Strikes(uint64_t per_thousand) {
  const bool strikes = rng_.Below(1000) < per_thousand;
  if (strikes) ++faults_made_;
  return strikes;
}

int64_t SimDisk::Used() const {
  int64_t used = 0;
  for (const auto& [path, file] : files_) used += static_cast<int64_t>(file->now.size());
  return used;
}

Status SimDisk::WriteAt(const std::shared_ptr<File>& file, int64_t generation, int64_t offset,
                        std::string_view bytes) {
  MutexLock lock(mutex_);
  if (dead_ || generation != generation_) return Dead();
  int error = 0;
  if (Strikes(faults_.write_error)) error = EIO;
  if (error == 0 && Strikes(faults_.write_full)) error = ENOSPC;
  if (error != 0) bytes = bytes.substr(0, rng_.Below(bytes.size() + 1));
  const auto begin = static_cast<size_t>(offset);
  if (file->now.size() < begin + bytes.size()) file->now.resize(begin + bytes.size(), '\0');
  std::ranges::copy(bytes, file->now.begin() + offset);
  if (!bytes.empty()) {
    for (size_t s = begin / kSector; s <= (begin + bytes.size() - 1) / kSector; ++s)
      file->dirty.insert(s);
  }
  return error == 0 ? OkStatus() : ErrnoStatus("cannot write", error);
}

Status SimDisk::SyncFile(const std::shared_ptr<File>& file, int64_t generation) {
  MutexLock lock(mutex_);
  if (dead_ || generation != generation_) return Dead();
  return SyncLocked(*file);
}

Status SimDisk::SyncPath(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  const auto it = files_.find(path);
  if (it == files_.end()) return ErrnoStatus("cannot sync '" + path + "'", ENOENT);
  return SyncLocked(*it->second);
}

Status SimDisk::Rewrite(const std::string& path, std::string_view bytes) {
  std::shared_ptr<File> file;
  int64_t generation = 0;
  {
    MutexLock lock(mutex_);
    const auto it = files_.find(path);
    if (it == files_.end()) return ErrnoStatus("cannot open '" + path + "'", ENOENT);
    file = it->second;
    generation = generation_;
  }
  FB_RETURN_IF_ERROR(WriteAt(file, generation, 0, bytes));
  return SyncFile(file, generation);
}

Status SimDisk::SyncLocked(File& file) {
  const bool fails = Strikes(faults_.sync_error);
  for (const size_t sector : file.dirty) {
    // A failed flush may have written some of it; the rest is marked clean and lost, as Linux does.
    if (fails && rng_.Below(2) == 0) continue;
    const size_t begin = sector * kSector;
    const size_t n = std::min(kSector, file.now.size() - std::min(begin, file.now.size()));
    if (file.durable.size() < begin + n) file.durable.resize(begin + n, '\0');
    std::copy_n(file.now.begin() + static_cast<int64_t>(begin), n,
                file.durable.begin() + static_cast<int64_t>(begin));
  }
  file.dirty.clear();
  return fails ? ErrnoStatus("cannot sync", EIO) : OkStatus();
}

Status SimDisk::MakeFolder(const std::string&) { return OkStatus(); }

Result<std::unique_ptr<FolderLock>> SimDisk::Lock(const std::string&) {
  return std::unique_ptr<FolderLock>(std::make_unique<NoLock>());
}

Result<std::vector<std::string>> SimDisk::List(const std::string& folder) {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  const std::string prefix = folder + "/";
  for (const auto& [path, file] : files_) {
    if (path.starts_with(prefix) && path.find('/', prefix.size()) == std::string::npos) {
      names.push_back(path.substr(prefix.size()));
    }
  }
  return names;
}

Result<std::unique_ptr<LogFile>> SimDisk::Create(const std::string& path, int64_t bytes) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  if (files_.count(path) > 0) return ErrnoStatus("cannot create '" + path + "'", EEXIST);
  if (Strikes(faults_.create_full) || Used() + bytes > faults_.disk_bytes) {
    return ErrnoStatus("cannot create '" + path + "'", ENOSPC);
  }
  auto file = std::make_shared<File>();
  file->now.resize(static_cast<size_t>(bytes), '\0');
  file->durable = file->now;
  files_[path] = file;
  return std::unique_ptr<LogFile>(std::make_unique<SimFile>(this, std::move(file), generation_));
}

Result<std::string> SimDisk::Read(const std::string& path) {
  MutexLock lock(mutex_);
  const auto it = files_.find(path);
  if (it == files_.end()) return ErrnoStatus("cannot open '" + path + "'", ENOENT);
  return it->second->now;
}

Status SimDisk::Truncate(const std::string& path, int64_t bytes) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  const auto it = files_.find(path);
  if (it == files_.end()) return ErrnoStatus("cannot truncate '" + path + "'", ENOENT);
  it->second->now.resize(static_cast<size_t>(bytes));
  it->second->durable.resize(static_cast<size_t>(bytes));
  std::erase_if(it->second->dirty,
                [&](size_t s) { return s * kSector >= static_cast<size_t>(bytes); });
  return OkStatus();
}

Status SimDisk::Remove(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  return files_.erase(path) > 0 ? OkStatus() : ErrnoStatus("cannot remove '" + path + "'", ENOENT);
}

Status SimDisk::SyncFolder(const std::string&) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  durable_names_ = files_;
  return OkStatus();
}

void SimDisk::SetFaults(const DiskFaults& faults) {
  MutexLock lock(mutex_);
  faults_ = faults;
}

void SimDisk::Kill() {
  MutexLock lock(mutex_);
  dead_ = true;
}

void SimDisk::PowerLoss() {
  MutexLock lock(mutex_);
  dead_ = true;
  // A name that was not synced may be there or not; a removed file may be back.
  for (const auto& [path, file] : durable_names_) {
    if (files_.count(path) == 0 && rng_.Below(2) == 0) files_[path] = file;
  }
  for (auto it = files_.begin(); it != files_.end();) {
    const bool lost = durable_names_.count(it->first) == 0 && rng_.Below(2) == 0;
    it = lost ? files_.erase(it) : std::next(it);
  }
  for (auto& [path, file] : files_) {
    std::string after = file->durable;
    after.resize(file->now.size(), '\0');
    for (const size_t sector : file->dirty) {
      if (rng_.Below(2) == 0) continue;
      const size_t begin = std::min(sector * kSector, after.size());
      const size_t n = std::min(kSector, after.size() - begin);
      std::copy_n(file->now.begin() + static_cast<int64_t>(begin), n,
                  after.begin() + static_cast<int64_t>(begin));
    }
    file->now = file->durable = after;
    file->dirty.clear();
  }
  durable_names_ = files_;
}

void SimDisk::Restart() {
  MutexLock lock(mutex_);
  dead_ = false;
  ++generation_;
  faults_ = DiskFaults{};
}

bool SimDisk::FlipBit() {
  MutexLock lock(mutex_);
  std::vector<std::pair<File*, size_t>> written;
  for (auto& [path, file] : files_) {
    if (path.find("quarantine") != std::string::npos) continue;
    const size_t end = file->now.find_last_not_of('\0');
    if (end != std::string::npos) written.emplace_back(file.get(), end + 1);
  }
  if (written.empty()) return false;
  auto& [file, bytes] = written[rng_.Below(written.size())];
  const size_t at = rng_.Below(bytes);
  file->now[at] = static_cast<char>(file->now[at] ^ (1 << rng_.Below(8)));
  file->durable = file->now;
  return true;
}

int64_t SimDisk::faults_made() const {
  MutexLock lock(mutex_);
  return faults_made_;
}

}  // namespace forebay::buffer
