#include "forebay/buffer/log_reader_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
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

Status ReadOnly(const std::string& path) {
  return FailedPrecondition(fmt::format("'{}' was opened for reading only", path));
}

}  // namespace

Result<std::unique_ptr<ReadOnlyFile>> ReadOnlyFile::Open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot look at '" + path + "'", errno);
  if (!S_ISREG(info.st_mode)) {
    return FailedPrecondition(fmt::format("'{}' is not a regular file", path));
  }
  return std::unique_ptr<ReadOnlyFile>(new ReadOnlyFile(path, std::move(fd), info.st_size));
}

Status ReadOnlyFile::WriteDurable(int64_t, std::string_view) { return ReadOnly(path_); }
Status ReadOnlyFile::Write(int64_t, std::string_view) { return ReadOnly(path_); }
Status ReadOnlyFile::Sync() { return ReadOnly(path_); }
Result<char*> ReadOnlyFile::Map() { return ReadOnly(path_); }

Status ReadOnlyFile::ReadAt(int64_t offset, char* out, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_.get(), out, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(fmt::format("cannot read '{}' at {}", path_, offset), errno);
    if (n == 0) {
      return DataLoss(fmt::format("'{}' ends at {}, {} bytes are missing", path_, offset, bytes));
    }
    out += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
  return OkStatus();
}

Result<std::string> ReadOnlyFile::ReadRange(int64_t offset, int64_t end,
                                            int64_t* unreadable_bytes) {
  end = std::min(end, bytes_);
  if (offset >= end) return std::string();
  if (end - offset > kToolFileBytesMax) {
    return ResourceExhausted(
        fmt::format("'{}' is larger than {} bytes: these tools read no larger segment", path_,
                    kToolFileBytesMax));
  }
  std::string out(static_cast<size_t>(end - offset), '\0');
  for (size_t at = 0; at < out.size();) {
    size_t size = std::min(out.size() - at, size_t{1} << 20);
    Status read = ReadAt(offset + static_cast<int64_t>(at), out.data() + at, size);
    if (!read.ok() && size > kBlockBytes) {
      size = kBlockBytes;
      read = ReadAt(offset + static_cast<int64_t>(at), out.data() + at, size);
    }
    if (!read.ok()) {
      if (read.code() == StatusCode::kDataLoss) {  // the file became shorter
        out.resize(at);
        return out;
      }
      std::fill_n(out.begin() + static_cast<int64_t>(at), size, '\0');
      *unreadable_bytes += static_cast<int64_t>(size);
    }
    at += size;
  }
  return out;
}

Result<std::vector<std::string>> ListFolder(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return ErrnoStatus("cannot list '" + folder + "'", error.value());
  std::ranges::sort(names);
  return names;
}

}  // namespace forebay::buffer
