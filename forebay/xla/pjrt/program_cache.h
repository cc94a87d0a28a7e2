// DiskCache: compiled programs as files, one per key, so that a restarted run does not compile
// again.
//
// A file is a header (magic, key, payload size, checksum) and the plugin's serialized executable.
// Writes go to a temporary file that is renamed, so readers and concurrent writers see whole files
// only. The cache is an optimisation: a file that is missing, torn, foreign or damaged is a miss,
// and a failed write is ignored. Files hold machine code: the folder is made for its owner alone.
// Thread-safe, blocking file I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"

namespace forebay::xla::pjrt {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;

  std::string ToHex() const;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};

Hash128 HashBytes(std::string_view bytes);

class DiskCache {
 public:
  // Makes `folder` if needed. kInvalidArgument if it cannot be made; "" is a cache that holds
  // nothing.
  static Result<DiskCache> Open(const std::string& folder);

  std::optional<std::string> Read(const Hash128& key) const;
  void Write(const Hash128& key, std::string_view payload) const;
  bool enabled() const { return !folder_.empty(); }

 private:
  explicit DiskCache(std::string folder) : folder_(std::move(folder)) {}
  std::string Path(const Hash128& key) const;

  std::string folder_;
};

}  // namespace forebay::xla::pjrt
