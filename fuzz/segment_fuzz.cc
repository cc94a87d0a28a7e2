// A scan of arbitrary bytes as a segment: whatever it finds lies within them and does not overlap.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace buffer = forebay::buffer;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = buffer::ParseSegmentHeader(bytes);
  const buffer::SegmentScan scan = buffer::ScanSegment(bytes, header.ok() ? header->number : 1);
  size_t end = 0;
  for (const buffer::ScannedRecord& record : scan.records) {
    FB_CHECK(record.offset >= end, "records overlap");
    FB_CHECK(record.offset + buffer::kRecordAlign + record.payload.size() <= size,
             "a record beyond the end");
    end = record.offset + buffer::kRecordAlign + record.payload.size();
  }
  for (const buffer::DamagedRange& range : scan.damaged) {
    FB_CHECK(range.offset + range.bytes <= size, "damage beyond the end");
  }
  return 0;
}
