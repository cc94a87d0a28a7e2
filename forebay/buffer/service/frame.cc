#include "forebay/buffer/service/frame.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/crc32c.h"

namespace forebay::buffer {
namespace {

// As it lies on the wire (base/bytes.h asserts a little-endian machine).
struct Raw {
  uint32_t length;
  uint8_t type, flags;
  uint16_t table;
  uint64_t request;
  uint32_t argument, extra, payload_crc, header_crc;
};
static_assert(sizeof(Raw) == kFrameHeaderBytes);

constexpr size_t kChecked = kFrameHeaderBytes - sizeof(uint32_t);

}  // namespace

FrameHeaderBytes EncodeFrameHeader(const FrameHeader& header) {
  const Raw raw{.length = header.length,
                .type = static_cast<uint8_t>(header.type),
                .flags = header.flags,
                .table = header.table,
                .request = header.request,
                .argument = header.argument,
                .extra = header.extra,
                .payload_crc = header.payload_crc,
                .header_crc = 0};
  FrameHeaderBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof(raw));
  const uint32_t crc = Crc32c({bytes.data(), kChecked});
  std::memcpy(bytes.data() + kChecked, &crc, sizeof(crc));
  return bytes;
}

Result<FrameHeader> ParseFrameHeader(std::string_view bytes, uint32_t length_max) {
  FB_CHECK(bytes.size() == kFrameHeaderBytes);
  Raw raw{};
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  if (Crc32c(bytes.substr(0, kChecked)) != raw.header_crc) {
    return DataLoss(
        "a frame header's checksum is wrong: damaged bytes, or a peer that does not speak the "
        "buffer protocol");
  }
  if (raw.length > length_max) {
    return ResourceExhausted(
        fmt::format("a frame of {} bytes, at most {} are allowed", raw.length, length_max));
  }
  return FrameHeader{.length = raw.length,
                     .type = static_cast<FrameType>(raw.type),
                     .flags = raw.flags,
                     .table = raw.table,
                     .request = raw.request,
                     .argument = raw.argument,
                     .extra = raw.extra,
                     .payload_crc = raw.payload_crc};
}

Status CheckPayload(const FrameHeader& header, std::string_view payload) {
  if ((header.flags & kFrameHasCrc) != 0 && Crc32c(payload) != header.payload_crc) {
    return DataLoss("a frame's payload does not match its checksum");
  }
  return OkStatus();
}

}  // namespace forebay::buffer
