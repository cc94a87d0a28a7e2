#include "forebay/buffer/log/file_testing.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/segment.h"

namespace forebay::buffer {
namespace {

constexpr size_t kSector = 512;

Status Dead() { return ErrnoStatus("the simulated process is dead", EIO); }

}  // namespace

struct SimDisk::File {
  std::shared_ptr<std::string> now;  // as the process sees it; mappings point into it
  std::string durable;               // as the device has it; as long as `now`
  std::set<size_t> dirty;            // sectors that differ, but for stores through a mapping
  bool mapped = false;

  std::string_view Sector(const std::string& of, size_t sector) const {
    const size_t begin = std::min(sector * kSector, of.size());
    return std::string_view(of).substr(begin, kSector);
  }
  void Persist(size_t sector) {
    const std::string_view from = Sector(*now, sector);
    if (!from.empty()) std::memcpy(durable.data() + sector * kSector, from.data(), from.size());
  }
  void FindDirty() {
    if (!mapped) return;
    for (size_t s = 0; s * kSector < now->size(); ++s) {
      if (Sector(*now, s) != Sector(durable, s)) dirty.insert(s);
    }
  }
  void Resize(size_t bytes) {
    now->resize(bytes, '\0');
    durable.resize(bytes, '\0');
    std::erase_if(dirty, [bytes](size_t s) { return s * kSector >= bytes; });
  }
};

class SimFile : public LogFile {
 public:
  SimFile(SimDisk* disk, std::shared_ptr<SimDisk::File> file, int64_t generation)
      : disk_(disk),
        file_(std::move(file)),
        generation_(generation),
        bytes_(static_cast<int64_t>(file_->now->size())) {}

  Status WriteDurable(int64_t offset, std::string_view bytes) override {
    FB_CHECK(static_cast<size_t>(offset) % kBlockBytes == 0 && bytes.size() % kBlockBytes == 0 &&
                 reinterpret_cast<uintptr_t>(bytes.data()) % kBlockBytes == 0,
             "durable writes are of whole, aligned blocks");
    return disk_->WriteAt(file_, generation_, offset, bytes, true);
  }
  Status Write(int64_t offset, std::string_view bytes) override {
    return disk_->WriteAt(file_, generation_, offset, bytes, false);
  }
  Status Sync() override { return disk_->SyncFile(file_, generation_); }
  Result<char*> Map() override {
    if (map_ == nullptr) {
      FB_ASSIGN_OR_RETURN(map_, disk_->MapFile(file_, generation_));
    }
    return map_->data();
  }
  Status ReadAt(int64_t offset, char* out, size_t bytes) override {
    return disk_->ReadAt(file_, generation_, offset, out, bytes);
  }
  int64_t bytes() const override { return bytes_; }

 private:
  SimDisk* const disk_;
  const std::shared_ptr<SimDisk::File> file_;
  const int64_t generation_;
  const int64_t bytes_;
  std::shared_ptr<std::string> map_;  // outlives the process that mapped it
};

namespace {

class SimLock : public FolderLock {
 public:
  explicit SimLock(std::function<void()> release) : release_(std::move(release)) {}
  ~SimLock() override { release_(); }
  SimLock(const SimLock&) = delete;
  SimLock& operator=(const SimLock&) = delete;

 private:
  std::function<void()> release_;
};

}  // namespace

bool SimDisk::Strikes(uint64_t per_thousand) {
  const bool strikes = rng_.Below(1000) < per_thousand;
  if (strikes) ++faults_made_;
  return strikes;
}

// Whether the operation that begins now is the one that the process dies in.
SimDisk::Strike SimDisk::Next() {
  if (dead_) return Strike::kDead;
  if (!dies_in_) return Strike::kNone;
  if (*dies_in_ > 0) {
    --*dies_in_;
    return Strike::kNone;
  }
  return Strike::kDies;
}

int64_t SimDisk::Used() const {
  int64_t used = 0;
  for (const auto& [path, file] : files_) used += static_cast<int64_t>(file->now->size());
  return used;
}

void SimDisk::Store(File& file, size_t at, std::string_view bytes, bool durable) {
  if (bytes.empty()) return;
  if (file.now->size() < at + bytes.size()) {
    FB_CHECK(!file.mapped, "a mapped file does not grow");
    file.Resize(at + bytes.size());
  }
  std::memcpy(file.now->data() + at, bytes.data(), bytes.size());
  for (size_t s = at / kSector; s <= (at + bytes.size() - 1) / kSector; ++s) {
    if (durable) {
      file.Persist(s);
      file.dirty.erase(s);
    } else {
      file.dirty.insert(s);
    }
  }
}

Status SimDisk::WriteAt(const std::shared_ptr<File>& file, int64_t generation, int64_t offset,
                        std::string_view bytes, bool durable) {
  MutexLock lock(mutex_);
  const Strike strike = Next();
  if (strike == Strike::kDead || generation != generation_) return Dead();
  const auto at = static_cast<size_t>(offset);
  if (strike == Strike::kDies) {
    if (durable && dies_by_power_) {
      // The device writes sectors in any order.
      for (size_t s = 0; s < bytes.size(); s += kSector) {
        if (rng_.Below(2) == 0) Store(*file, at + s, bytes.substr(s, kSector), true);
      }
    } else {
      Store(*file, at, bytes.substr(0, rng_.Below(bytes.size() + 1)), durable);
    }
    Die(dies_by_power_);
    return Dead();
  }
  int error = 0;
  if (Strikes(faults_.write_error)) error = EIO;
  if (error == 0 && Strikes(faults_.write_full)) error = ENOSPC;
  if (error != 0) bytes = bytes.substr(0, rng_.Below(bytes.size() + 1));
  Store(*file, at, bytes, durable);
  return error == 0 ? OkStatus() : ErrnoStatus("cannot write", error);
}

Status SimDisk::SyncFile(const std::shared_ptr<File>& file, int64_t generation) {
  MutexLock lock(mutex_);
  const Strike strike = Next();
  if (strike == Strike::kDead || generation != generation_) return Dead();
  return Sync(*file, strike == Strike::kDies);
}

Status SimDisk::Sync(File& file, bool dies) {
  const bool fails = !dies && Strikes(faults_.sync_error);
  file.FindDirty();
  for (const size_t sector : file.dirty) {
    // A failed flush may have written some of it; the rest is marked clean and lost, as Linux does.
    if ((fails || dies) && rng_.Below(2) == 0) continue;
    file.Persist(sector);
  }
  if (dies) {
    Die(dies_by_power_);
    return Dead();
  }
  file.dirty.clear();
  return fails ? ErrnoStatus("cannot sync", EIO) : OkStatus();
}

Status SimDisk::ReadAt(const std::shared_ptr<File>& file, int64_t generation, int64_t offset,
                       char* out, size_t bytes) {
  MutexLock lock(mutex_);
  if (dead_ || generation != generation_) return Dead();
  if (Strikes(faults_.read_error)) return ErrnoStatus("cannot read", EIO);
  const auto at = static_cast<size_t>(offset);
  if (at > file->now->size() || file->now->size() - at < bytes) {
    return DataLoss("the file ends before that");
  }
  if (bytes > 0) std::memcpy(out, file->now->data() + at, bytes);
  return OkStatus();
}

Result<std::shared_ptr<std::string>> SimDisk::MapFile(const std::shared_ptr<File>& file,
                                                      int64_t generation) {
  MutexLock lock(mutex_);
  if (dead_ || generation != generation_) return Dead();
  file->mapped = true;
  return file->now;
}

Status SimDisk::MakeFolder(const std::string&) {
  MutexLock lock(mutex_);
  return dead_ ? Dead() : OkStatus();
}

Result<std::unique_ptr<FolderLock>> SimDisk::Lock(const std::string& folder) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  const auto held = locks_.find(folder);
  if (held != locks_.end() && held->second == generation_) {
    return FailedPrecondition("another holder has the folder");
  }
  locks_[folder] = generation_;
  return std::unique_ptr<FolderLock>(
      std::make_unique<SimLock>([this, folder, generation = generation_] {
        MutexLock held_lock(mutex_);
        const auto it = locks_.find(folder);
        if (it != locks_.end() && it->second == generation) locks_.erase(it);
      }));
}

Result<std::vector<std::string>> SimDisk::List(const std::string& folder) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  std::vector<std::string> names;
  const std::string prefix = folder + "/";
  for (const auto& [path, file] : files_) {
    if (path.starts_with(prefix) && path.find('/', prefix.size()) == std::string::npos) {
      names.push_back(path.substr(prefix.size()));
    }
  }
  return names;
}

template <typename Change>
Status SimDisk::ChangeNames(const Change& change) {
  const Strike strike = Next();
  if (strike == Strike::kDead) return Dead();
  if (strike == Strike::kDies) {
    if (rng_.Below(2) == 0) change();
    Die(dies_by_power_);
    return Dead();
  }
  change();
  return OkStatus();
}

Result<std::unique_ptr<LogFile>> SimDisk::Create(const std::string& path, int64_t bytes,
                                                 bool written) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  FB_CHECK(!written || static_cast<size_t>(bytes) % kBlockBytes == 0, "zeros are whole blocks");
  if (files_.count(path) > 0) return ErrnoStatus("cannot create '" + path + "'", EEXIST);
  if (Strikes(faults_.create_full) || Used() + bytes > faults_.disk_bytes) {
    return ErrnoStatus("cannot create '" + path + "'", ENOSPC);
  }
  auto file = std::make_shared<File>();
  file->now = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
  file->durable = *file->now;
  FB_RETURN_IF_ERROR(ChangeNames([&]() FB_REQUIRES(mutex_) { files_[path] = file; }));
  return std::unique_ptr<LogFile>(std::make_unique<SimFile>(this, std::move(file), generation_));
}

Result<std::unique_ptr<LogFile>> SimDisk::Open(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  const auto it = files_.find(path);
  if (it == files_.end()) return ErrnoStatus("cannot open '" + path + "'", ENOENT);
  if (Strikes(faults_.open_full)) return ErrnoStatus("cannot open '" + path + "'", EMFILE);
  return std::unique_ptr<LogFile>(std::make_unique<SimFile>(this, it->second, generation_));
}

Result<std::string> SimDisk::Read(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  const auto it = files_.find(path);
  if (it == files_.end()) return ErrnoStatus("cannot open '" + path + "'", ENOENT);
  if (Strikes(faults_.open_full)) return ErrnoStatus("cannot open '" + path + "'", EMFILE);
  if (Strikes(faults_.read_error)) return ErrnoStatus("cannot read '" + path + "'", EIO);
  return *it->second->now;
}

Status SimDisk::Truncate(const std::string& path, int64_t bytes) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  const auto it = files_.find(path);
  if (it == files_.end()) return ErrnoStatus("cannot truncate '" + path + "'", ENOENT);
  File& file = *it->second;
  return ChangeNames([&] { file.Resize(static_cast<size_t>(bytes)); });
}

Status SimDisk::Remove(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return Dead();
  if (files_.count(path) == 0) return ErrnoStatus("cannot remove '" + path + "'", ENOENT);
  return ChangeNames([&]() FB_REQUIRES(mutex_) { files_.erase(path); });
}

Status SimDisk::SyncFolder(const std::string&) {
  MutexLock lock(mutex_);
  if (faults_.folder_error > 0 && Strikes(faults_.folder_error))
    return ErrnoStatus("cannot sync the folder", EIO);
  return ChangeNames([&]() FB_REQUIRES(mutex_) { durable_names_ = files_; });
}

void SimDisk::SetFaults(const DiskFaults& faults) {
  MutexLock lock(mutex_);
  faults_ = faults;
}

void SimDisk::Die(bool power) {
  dead_ = true;
  dies_in_.reset();
  if (power) LosePower();
  // Whatever the dead process still stores through its mappings goes to the old memory.
  for (auto& [path, file] : files_) {
    if (file->mapped) file->now = std::make_shared<std::string>(*file->now);
  }
}

void SimDisk::LosePower() {
  // A name that was not synced may be there or not; a removed or replaced file may be back.
  std::set<std::string> paths;
  for (const auto& [path, file] : files_) paths.insert(path);
  for (const auto& [path, file] : durable_names_) paths.insert(path);
  std::map<std::string, std::shared_ptr<File>> after;
  for (const std::string& path : paths) {
    const auto now = files_.find(path), durable = durable_names_.find(path);
    std::shared_ptr<File> file = now == files_.end() ? nullptr : now->second;
    const std::shared_ptr<File> other = durable == durable_names_.end() ? nullptr : durable->second;
    if (file != other && rng_.Below(2) == 0) file = other;
    if (file != nullptr) after[path] = std::move(file);
  }
  files_ = std::move(after);
  for (auto& [path, file] : files_) {
    file->FindDirty();
    for (const size_t sector : file->dirty) {
      if (rng_.Below(2) == 0) file->Persist(sector);
    }
    file->dirty.clear();
    file->now = std::make_shared<std::string>(file->durable);
    file->mapped = false;
  }
  durable_names_ = files_;
}

void SimDisk::Kill() {
  MutexLock lock(mutex_);
  if (!dead_) Die(false);
}

void SimDisk::PowerLoss() {
  MutexLock lock(mutex_);
  if (!dead_) Die(true);
}

void SimDisk::KillIn(uint64_t operations) {
  MutexLock lock(mutex_);
  dies_in_ = operations;
  dies_by_power_ = false;
}

void SimDisk::PowerLossIn(uint64_t operations) {
  MutexLock lock(mutex_);
  dies_in_ = operations;
  dies_by_power_ = true;
}

bool SimDisk::dead() const {
  MutexLock lock(mutex_);
  return dead_;
}

void SimDisk::Restart() {
  MutexLock lock(mutex_);
  dead_ = false;
  dies_in_.reset();
  ++generation_;
  faults_ = DiskFaults{};
}

bool SimDisk::FlipBit(Where where) {
  MutexLock lock(mutex_);
  struct Range {
    File* file;
    size_t begin, end;
  };
  std::vector<Range> written;
  for (auto& [path, file] : files_) {
    if (path.find("quarantine") != std::string::npos) continue;
    const bool segment = path.find("segment-") != std::string::npos;
    const size_t last = file->now->find_last_not_of('\0');
    if (last == std::string::npos || path.ends_with("/lock")) continue;
    Range range{.file = file.get(), .begin = 0, .end = last + 1};
    if (where == Where::kState && segment) continue;
    if (where != Where::kState && where != Where::kAnywhere && !segment) continue;
    if (where == Where::kSegmentHeader) range.end = std::min(range.end, sizeof(SegmentHeader));
    if (where == Where::kRecord) range.begin = kDataBegin;
    if (where == Where::kIndex) range.begin = file->now->size() - kBlockBytes;
    if (range.begin < range.end) written.push_back(range);
  }
  if (written.empty()) return false;
  const Range range = written[rng_.Below(written.size())];
  const size_t at = range.begin + rng_.Below(range.end - range.begin);
  const auto bit = static_cast<char>(1 << rng_.Below(8));
  (*range.file->now)[at] = static_cast<char>((*range.file->now)[at] ^ bit);
  range.file->durable[at] = static_cast<char>(range.file->durable[at] ^ bit);
  return true;
}

int64_t SimDisk::faults_made() const {
  MutexLock lock(mutex_);
  return faults_made_;
}

int64_t SimDisk::used_bytes() const {
  MutexLock lock(mutex_);
  int64_t used = 0;
  for (const auto& [path, file] : files_) {
    if (path.find("segment-") == std::string::npos || path.find("quarantine") != std::string::npos)
      continue;
    used += static_cast<int64_t>(file->now->size());
  }
  return used;
}

}  // namespace forebay::buffer
