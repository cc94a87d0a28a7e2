#include "forebay/buffer/log/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::buffer {
namespace {

// Zeros are written in pieces of this size.
constexpr size_t kZeroBytes = size_t{1} << 20;

Status WriteAll(int fd, const std::string& path, int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot write '" + path + "'", errno);
    offset += n;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

class RealFile : public LogFile {
 public:
  // `durable` is the same file opened for durable writes; invalid: there will be none.
  RealFile(Fd fd, Fd durable, std::string path, int64_t bytes)
      : fd_(std::move(fd)), durable_(std::move(durable)), path_(std::move(path)), bytes_(bytes) {}
  ~RealFile() override {
    if (map_ != nullptr) ::munmap(map_, static_cast<size_t>(bytes_));
  }
  RealFile(const RealFile&) = delete;
  RealFile& operator=(const RealFile&) = delete;

  Status WriteDurable(int64_t offset, std::string_view bytes) override {
    FB_CHECK(static_cast<size_t>(offset) % kBlockBytes == 0 && bytes.size() % kBlockBytes == 0,
             "durable writes are of whole blocks");
    FB_CHECK(durable_.valid(), "durable writes are to files that were created written");
    return WriteAll(durable_.get(), path_, offset, bytes);
  }

  Status Write(int64_t offset, std::string_view bytes) override {
    return WriteAll(fd_.get(), path_, offset, bytes);
  }

  Status Sync() override {
    if (::fdatasync(fd_.get()) != 0) return ErrnoStatus("cannot sync '" + path_ + "'", errno);
    return OkStatus();
  }

  Result<char*> Map() override {
    if (map_ == nullptr) {
      void* map = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED,
                         fd_.get(), 0);
      if (map == MAP_FAILED) return ErrnoStatus("cannot map '" + path_ + "'", errno);
      map_ = static_cast<char*>(map);
    }
    return map_;
  }

  Status ReadAt(int64_t offset, char* out, size_t bytes) override {
    while (bytes > 0) {
      const ssize_t n = ::pread(fd_.get(), out, bytes, offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus("cannot read '" + path_ + "'", errno);
      if (n == 0) return DataLoss(fmt::format("'{}' ends before byte {}", path_, offset));
      out += n;
      offset += n;
      bytes -= static_cast<size_t>(n);
    }
    return OkStatus();
  }

  int64_t bytes() const override { return bytes_; }

  void WillRead(int64_t offset, int64_t bytes) override {
    ::posix_fadvise(fd_.get(), offset, bytes, POSIX_FADV_WILLNEED);
  }

 private:
  Fd fd_, durable_;
  std::string path_;
  int64_t bytes_;
  char* map_ = nullptr;
};

class RealLock : public FolderLock {
 public:
  explicit RealLock(Fd fd) : fd_(std::move(fd)) {}

 private:
  Fd fd_;  // closing it gives the lock back, and so does the death of the process
};

// Not every file system has O_DIRECT (tmpfs); durable it is with O_DSYNC alone.
Result<Fd> OpenDurable(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DSYNC | O_DIRECT));
  if (!fd.valid() && errno == EINVAL) fd = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DSYNC));
  if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
  return fd;
}

// A pipe would be waited on for ever.
Status NoFile(const std::string& path) {
  return FailedPrecondition("'" + path + "' is no regular file: remove it, or put the file back");
}

// Not durably, piece by piece: one sync follows.
Status WriteZeros(const std::string& path, int64_t bytes) {
  Fd direct(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT));
  if (!direct.valid() && errno == EINVAL) direct = Fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!direct.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
  const std::unique_ptr<char, decltype(&std::free)> zeros(
      static_cast<char*>(std::aligned_alloc(kBlockBytes, kZeroBytes)), &std::free);
  FB_CHECK(zeros != nullptr, "out of memory");
  std::memset(zeros.get(), 0, kZeroBytes);
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(kZeroBytes)) {
    const size_t n = std::min(kZeroBytes, static_cast<size_t>(bytes - at));
    FB_RETURN_IF_ERROR(WriteAll(direct.get(), path, at, {zeros.get(), n}));
  }
  return OkStatus();
}

class RealFileSystem : public FileSystem {
 public:
  Status MakeFolder(const std::string& path) override { return MakeFolders(path); }

  Result<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override {
    const std::string path = folder + "/lock";
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return ErrnoStatus("cannot lock '" + path + "'", errno);
      return FailedPrecondition("another process holds the buffer's folder '" + folder +
                                "': stop it, or use another run folder");
    }
    return std::unique_ptr<FolderLock>(std::make_unique<RealLock>(std::move(fd)));
  }

  Result<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator it(folder, error);
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return ErrnoStatus("cannot list '" + folder + "'", error.value());
    std::ranges::sort(names);
    return names;
  }

  Result<std::unique_ptr<LogFile>> Create(const std::string& path, int64_t bytes,
                                          bool written) override {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd.valid()) return ErrnoStatus("cannot create '" + path + "'", errno);
    const int error = ::posix_fallocate(fd.get(), 0, bytes);
    Status status =
        error == 0 ? OkStatus()
                   : ErrnoStatus(fmt::format("cannot take {} bytes for '{}'", bytes, path), error);
    Fd durable;
    if (status.ok() && written) {
      Result<Fd> opened = OpenDurable(path);
      status = opened.status();
      if (opened.ok()) durable = std::move(*opened);
    }
    if (status.ok() && written) {
      status = WriteZeros(path, bytes);
      if (status.ok() && ::fsync(fd.get()) != 0) {
        status = ErrnoStatus("cannot sync '" + path + "'", errno);
      }
    }
    if (!status.ok()) {
      ::unlink(path.c_str());
      return status;
    }
    return std::unique_ptr<LogFile>(
        std::make_unique<RealFile>(std::move(fd), std::move(durable), path, bytes));
  }

  Result<std::unique_ptr<LogFile>> Open(const std::string& path) override {
    Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
    struct stat info{};
    if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot stat '" + path + "'", errno);
    if (!S_ISREG(info.st_mode)) return NoFile(path);
    // A record, or an index: what lies around them is not read.
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
    // There may be thousands of them: one descriptor each.
    return std::unique_ptr<LogFile>(
        std::make_unique<RealFile>(std::move(fd), Fd(), path, info.st_size));
  }

  Result<std::string> Read(const std::string& path) override {
    struct stat info{};
    if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return NoFile(path);
    return ReadFile(path, std::numeric_limits<size_t>::max() / 2);
  }

  Status Truncate(const std::string& path, int64_t bytes) override {
    if (::truncate(path.c_str(), bytes) != 0)
      return ErrnoStatus("cannot truncate '" + path + "'", errno);
    return OkStatus();
  }

  Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return ErrnoStatus("cannot remove '" + path + "'", errno);
    return OkStatus();
  }

  Status SyncFolder(const std::string& folder) override { return forebay::SyncFolder(folder); }
};

}  // namespace

std::unique_ptr<FileSystem> MakeFileSystem() { return std::make_unique<RealFileSystem>(); }

}  // namespace forebay::buffer
