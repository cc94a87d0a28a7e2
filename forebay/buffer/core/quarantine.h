// Quarantine: where damaged bytes are kept, because nothing is deleted silently.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/segment.h"

namespace forebay::buffer {

// Not thread-safe.
class Quarantine {
 public:
  // Counts and notes go to `report`.
  Quarantine(FileSystem& files, std::string folder, Recovery* report)
      : files_(files), folder_(std::move(folder)), report_(report) {}
  // Keeps a copy of a damaged range of a segment, once.
  void Put(uint32_t segment, const DamagedRange& range, std::string_view bytes);

 private:
  Status Keep(const std::string& path, std::string_view bytes);

  FileSystem& files_;
  const std::string folder_;
  Recovery* const report_;
};

}  // namespace forebay::buffer
