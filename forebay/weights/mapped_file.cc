#include "forebay/weights/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::weights {

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(fmt::format("cannot read the size of {}", path), errno);
  }
  if (!S_ISREG(info.st_mode)) return InvalidArgument(fmt::format("{} is not a file", path));

  std::span<const std::byte> bytes;
  if (info.st_size > 0) {  // mmap refuses a length of 0
    const auto size = static_cast<size_t>(info.st_size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) return ErrnoStatus(fmt::format("cannot map {}", path), errno);
    bytes = {static_cast<const std::byte*>(data), size};
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace forebay::weights
