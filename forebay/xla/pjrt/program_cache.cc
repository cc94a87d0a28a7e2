#include "forebay/xla/pjrt/program_cache.h"

#include <fmt/format.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "forebay/base/status.h"

namespace forebay::xla::pjrt {
namespace {

constexpr std::array<char, 8> kMagic = {'F', 'B', 'P', 'J', 'R', 'T', '0', '1'};
// The largest program seen is below 100 MB; the bound keeps a hostile size from being allocated.
constexpr uint64_t kPayloadBytesMax = uint64_t{1} << 31;

struct Header {
  std::array<char, 8> magic;
  Hash128 key;
  uint64_t payload_bytes;
  Hash128 checksum;
};
static_assert(sizeof(Header) == 48);

}  // namespace

std::string Hash128::ToHex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 HashBytes(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Result<DiskCache> DiskCache::Open(const std::string& folder) {
  if (folder.empty()) return DiskCache("");
  std::error_code error;
  const bool created = std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error)) {
    return InvalidArgument(
        fmt::format("cannot make the folder '{}' for compiled programs: {}", folder,
                    error ? error.message() : "a file of that name is in the way"));
  }
  if (created) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  }
  return DiskCache(folder);
}

std::string DiskCache::Path(const Hash128& key) const {
  return (std::filesystem::path(folder_) / (key.ToHex() + ".pjrt")).string();
}

std::optional<std::string> DiskCache::Read(const Hash128& key) const {
  if (!enabled()) return std::nullopt;
  const std::string path = Path(key);
  std::ifstream file(path, std::ios::binary);
  Header header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return std::nullopt;
  std::error_code error;
  const uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (error || header.magic != kMagic || header.key != key ||
      header.payload_bytes > kPayloadBytesMax ||
      sizeof(header) + header.payload_bytes != file_bytes) {
    return std::nullopt;
  }
  std::string payload(header.payload_bytes, '\0');
  if (!file.read(payload.data(), static_cast<std::streamsize>(payload.size()))) return std::nullopt;
  // XLA trusts its input: damaged code must not reach it.
  if (HashBytes(payload) != header.checksum) return std::nullopt;
  return payload;
}

void DiskCache::Write(const Hash128& key, std::string_view payload) const {
  if (!enabled() || payload.size() > kPayloadBytesMax) return;
  static std::atomic<uint64_t> sequence = 0;
  const std::string temporary =
      fmt::format("{}.{}.{}.tmp", Path(key), ::getpid(), sequence.fetch_add(1));
  const Header header = {kMagic, key, payload.size(), HashBytes(payload)};
  bool written = false;
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(&header), sizeof(header));
    file.write(payload.data(), static_cast<std::streamsize>(payload.size()));
    file.close();
    written = file.good();
  }
  // No fsync: after a power loss the checksum tells a torn file, which is then compiled again.
  std::error_code error;
  if (written) std::filesystem::rename(temporary, Path(key), error);
  if (!written || error) std::filesystem::remove(temporary, error);
}

}  // namespace forebay::xla::pjrt
