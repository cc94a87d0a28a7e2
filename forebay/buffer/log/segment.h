// The layout of a segment: a file of fixed size.
//
//   block 0         SegmentHeader, zeros
//   from block 1    records, back to back (pads fill up to whole blocks where a write ended)
//   index           when sealed: the 64-byte headers of all records in order, pads included
//   last 64 bytes   when sealed: SegmentTrailer, which says where the index is
//
// A segment that a crash left unsealed is scanned. File names say nothing: segments are recycled,
// and the number in the header orders them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// The tools read a segment at once.
inline constexpr int64_t kSegmentBytesMax = int64_t{2} << 30;

std::string SegmentName(uint32_t file_id);  // "segment-0000000007.log"
std::optional<uint32_t> ParseSegmentName(std::string_view name);

inline constexpr uint32_t kLogFormat = 2;

struct SegmentHeader {
  uint32_t magic = 0, crc = 0;  // crc of what follows
  uint32_t format = kLogFormat;
  uint32_t number = 0;  // 1, 2, ... in log order; 0: never used
  int64_t capacity = 0;
  int64_t first_sequence = 0;
  int32_t group_size = 0;
  uint32_t zero[7] = {};
};
static_assert(sizeof(SegmentHeader) == 64);

struct SegmentTrailer {
  uint32_t magic = 0, crc = 0;  // crc of what follows
  uint32_t number = 0, index_crc = 0;
  int64_t records = 0;
  int64_t index_offset = 0;
  int64_t data_end = 0;
  int64_t last_sequence = 0;
  int64_t zero[2] = {};
};
static_assert(sizeof(SegmentTrailer) == 64);

// Where records begin.
inline constexpr size_t kDataBegin = kBlockBytes;

std::string EncodeSegmentHeader(SegmentHeader header);  // one block
// kDataLoss: damaged, or not a segment. kFailedPrecondition: another format.
Result<SegmentHeader> ParseSegmentHeader(std::string_view block);

// Bytes at the end of a segment that an index of so many records takes, whole blocks.
int64_t IndexBytes(int64_t records);
// The last IndexBytes(headers.size()) bytes of a segment.
std::string EncodeIndex(uint32_t number, const std::vector<RecordHeader>& headers,
                        int64_t capacity);

struct ScannedRecord {
  RecordHeader header;
  size_t offset = 0;
  std::string_view payload;  // into the scanned bytes; empty when only the index was read
};

// Bytes that are no valid record although one should be there.
struct DamagedRange {
  size_t offset = 0, bytes = 0;
  int64_t records = 1;  // at least
  // Trajectories whose records lay there, as far as it can still be read.
  std::vector<TrajectoryId> lost;
  // Nothing valid follows: a write that a crash cut.
  bool torn_tail = false;
};

struct SegmentScan {
  std::vector<ScannedRecord> records;  // without pads
  std::vector<DamagedRange> damaged;
  size_t data_end = 0;     // of the last record
  int64_t unfinished = 0;  // trajectories that were being copied when the process ended
  bool sealed = false;     // records are from the index; payloads were not looked at
};

// The record of the newest life in a segment whose header is damaged; nullopt: there is none. Pure.
std::optional<RecordHeader> NewestHeader(std::string_view bytes);
// Looks at every byte. Pure; `bytes` is the file's content and may be anything.
SegmentScan ScanSegment(std::string_view bytes, uint32_t number);
// The same from the index of a sealed segment, reading nothing else; nullopt when it is not sealed,
// or its trailer or index is damaged.
std::optional<SegmentScan> ReadIndex(LogFile& file, uint32_t number);
// Before ReadIndex, for many files in a row: first says that the trailer will be read, then reads
// it and says so of the index. Hints, without any other effect.
void WillReadTrailer(LogFile& file);
void WillReadIndex(LogFile& file, uint32_t number);

// The payload of the record whose header lies at `offset` of the file. kDataLoss: it is cut short
// or its checksum is wrong; `payload` has what was read, and keeps its capacity.
Status ReadPayload(LogFile& file, const RecordHeader& header, int64_t offset, std::string* payload);

// The payload of a trajectory's record in a file, verified; `buffer` gets the record. kDataLoss: it
// is not there, or damaged.
Result<std::string_view> ReadTrajectory(LogFile& file, uint32_t number, uint32_t offset_64,
                                        uint32_t payload_bytes, int64_t trajectory_id,
                                        std::unique_ptr<char[]>* buffer);

}  // namespace forebay::buffer
