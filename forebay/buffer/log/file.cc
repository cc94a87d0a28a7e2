#include "forebay/buffer/log/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::buffer {
namespace {

class RealFile : public LogFile {
 public:
  RealFile(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Status Write(int64_t offset, std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus("cannot write '" + path_ + "'", errno);
      offset += n;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return OkStatus();
  }

  Status Sync() override {
    if (::fdatasync(fd_.get()) != 0) return ErrnoStatus("cannot sync '" + path_ + "'", errno);
    return OkStatus();
  }

 private:
  Fd fd_;
  std::string path_;
};

class RealLock : public FolderLock {
 public:
  explicit RealLock(Fd fd) : fd_(std::move(fd)) {}

 private:
  Fd fd_;  // closing it gives the lock back, and so does the death of the process
};

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

  Result<std::unique_ptr<LogFile>> Create(const std::string& path, int64_t bytes) override {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd.valid()) return ErrnoStatus("cannot create '" + path + "'", errno);
    const int error = ::posix_fallocate(fd.get(), 0, bytes);
    if (error != 0) {
      ::unlink(path.c_str());
      return ErrnoStatus("cannot take " + std::to_string(bytes) + " bytes for '" + path + "'",
                         error);
    }
    return std::unique_ptr<LogFile>(std::make_unique<RealFile>(std::move(fd), path));
  }

  Result<std::string> Read(const std::string& path) override {
    return ReadFile(path, std::numeric_limits<size_t>::max() / 2);
  }

  Status SyncPath(const std::string& path) override {
    const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
    if (::fsync(fd.get()) != 0) return ErrnoStatus("cannot sync '" + path + "'", errno);
    return OkStatus();
  }

  Status Rewrite(const std::string& path, std::string_view bytes) override {
    Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
    RealFile file(std::move(fd), path);
    FB_RETURN_IF_ERROR(file.Write(0, bytes));
    return file.Sync();
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
