// MappedFile: a whole file in the address space, read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "forebay/base/status.h"

namespace forebay::weights {

// Unmaps in its destructor: tensors that view it hold it as their owner. The file must not be
// truncated while it is mapped (a read behind the new end would kill the process); our own writers
// replace files by renaming, which leaves the mapped one intact.
class MappedFile {
 public:
  // kNotFound when there is no such file, kInvalidArgument when it is not a regular one.
  static Result<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace forebay::weights
