// A segment: a file of records, named by its number. Scan finds what is in one after a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/buffer/log/record.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

std::string SegmentName(uint32_t number);  // "segment-0000000007.log"
std::optional<uint32_t> ParseSegmentName(std::string_view name);

struct ScannedRecord {
  RecordHeader header;
  size_t offset = 0;
  std::string_view payload;  // into the scanned bytes
};

// Bytes that are no valid record although one should be there.
struct DamagedRange {
  size_t offset = 0, bytes = 0;
  int64_t records = 1;  // at least
  // Trajectories whose records lay there, as far as it can still be read.
  std::vector<TrajectoryId> lost;
  // Nothing valid follows and nothing says that it was ever complete: a write that a crash cut.
  bool torn_tail = false;
};

struct SegmentScan {
  std::vector<ScannedRecord> records;
  std::vector<DamagedRange> damaged;
  size_t valid_end = 0;  // of the last record
};

// Pure; `bytes` is the file's content and may be anything.
SegmentScan ScanSegment(std::string_view bytes, uint32_t number);

}  // namespace forebay::buffer
