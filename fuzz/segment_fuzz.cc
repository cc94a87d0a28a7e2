// A scan of arbitrary bytes, and the parsers of what it finds: errors, never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/table/table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const forebay::buffer::SegmentScan scan = forebay::buffer::ScanSegment(bytes, 1);
  FB_CHECK(scan.valid_end <= size, "a record beyond the end");
  // A checksum keeps the fuzzer out, so the parsers get the bytes themselves.
  const bool parsed =
      forebay::buffer::ParseOpening(bytes).ok() || forebay::buffer::ParseDispatch(bytes).ok() ||
      forebay::buffer::ParseReject(bytes).ok() || forebay::buffer::ParseLease(bytes).ok();
  const auto table = forebay::buffer::Table::DecodeSnapshot(bytes);
  FB_CHECK(!table.ok() || table->ledger().balanced(), "a snapshot that does not balance");
  return parsed ? 0 : 0;
}
