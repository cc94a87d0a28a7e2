// A scan of arbitrary bytes as a segment: whatever it finds lies within them and does not overlap.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"

namespace {

using namespace forebay::buffer;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kNumber = 2;

void Scan(std::string_view bytes, uint32_t number) {
  const SegmentScan scan = ScanSegment(bytes, number);
  size_t end = 0;
  for (const ScannedRecord& record : scan.records) {
    FB_CHECK(record.offset >= end, "records overlap");
    FB_CHECK(record.offset + kRecordAlign + record.payload.size() <= bytes.size(),
             "a record beyond the end");
    end = record.offset + kRecordAlign + record.payload.size();
  }
  FB_CHECK(end <= scan.data_end && scan.data_end <= bytes.size(), "the data ends elsewhere");
  for (const DamagedRange& range : scan.damaged) {
    FB_CHECK(range.offset + range.bytes <= bytes.size(), "damage beyond the end");
    FB_CHECK(range.records >= 1, "damage of nothing");
  }
  (void)NewestHeader(bytes);
}

// Checksums keep a fuzzer out, and the first block its inputs: the bytes become headers and
// payloads behind a valid block. The bits of what was the header's checksum say which lies are
// told.
std::string Made(std::string_view bytes) {
  std::string made = EncodeSegmentHeader({.number = kNumber}).append(bytes);
  int64_t sequence = 0;
  for (size_t at = kDataBegin; at + kRecordAlign <= made.size();) {
    RecordHeader header;
    std::memcpy(&header, made.data() + at, sizeof(header));
    const uint32_t lies = header.crc;
    const size_t rest = made.size() - at - kRecordAlign;
    if ((lies & 1) == 0) header.segment = lies & 2 ? kNumber - 1 : kNumber;
    if ((lies & 4) == 0) header.sequence = ++sequence;
    if ((lies & 8) == 0) header.payload_bytes %= 512;
    const size_t payload = std::min<size_t>(rest, header.payload_bytes);
    if ((lies & 16) == 0) {
      header.payload_crc = Crc32c(std::string_view(made).substr(at + kRecordAlign, payload));
    }
    if ((lies & 32) == 0) SealHeader(header);
    std::memcpy(made.data() + at, &header, sizeof(header));
    at += std::min(static_cast<size_t>(RecordBytes(payload)), made.size() - at);
  }
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = ParseSegmentHeader(bytes);
  Scan(bytes, header.ok() ? header->number : 1);
  Scan(Made(bytes), kNumber);
  return 0;
}
