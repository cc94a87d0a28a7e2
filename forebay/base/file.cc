#include "forebay/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "forebay/base/status.h"

namespace forebay {

Status ErrnoStatus(std::string_view message, int error) {
  std::string text = std::string(message) + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
      return NotFound(std::move(text));
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return ResourceExhausted(std::move(text));
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return FailedPrecondition(std::move(text));
    default:
      return Internal(std::move(text));
  }
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void Fd::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
  std::string content;
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = ::read(fd.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot read '" + path + "'", errno);
    if (n == 0) return content;
    if (content.size() + static_cast<size_t>(n) > bytes_max) {
      return ResourceExhausted("'" + path + "' is larger than " + std::to_string(bytes_max) +
                               " bytes");
    }
    content.append(chunk, static_cast<size_t>(n));
  }
}

Status SyncFolder(const std::string& path) {
  Fd fd(::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("cannot open folder '" + path + "'", errno);
  if (::fsync(fd.get()) != 0) return ErrnoStatus("cannot sync folder '" + path + "'", errno);
  return OkStatus();
}

Status WriteFileAtomic(const std::string& path, std::string_view content) {
  const std::string aside = path + ".tmp";
  Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus("cannot create '" + aside + "'", errno);
  while (!content.empty()) {
    const ssize_t n = ::write(fd.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot write '" + aside + "'", errno);
    content.remove_prefix(static_cast<size_t>(n));
  }
  if (::fsync(fd.get()) != 0) return ErrnoStatus("cannot sync '" + aside + "'", errno);
  fd.Close();
  if (::rename(aside.c_str(), path.c_str()) != 0) {
    return ErrnoStatus("cannot rename '" + aside + "' to '" + path + "'", errno);
  }
  return SyncFolder(std::filesystem::path(path).parent_path().string());
}

Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus("cannot make folder '" + path + "'", error.value());
  return OkStatus();
}

}  // namespace forebay
