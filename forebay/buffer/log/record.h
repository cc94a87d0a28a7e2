// The records of the log: a header of 64 bytes, a payload, an end mark, padding to 64 bytes.
//
// Header and payload have a checksum each: with the header intact, a damaged payload can still be
// skipped and named. Sequences grow by one in a segment and are never used twice in a log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

enum class RecordType : uint8_t {
  kOpening = 1,   // the first of a segment
  kSnapshot = 2,  // the second: the table after every record before it
  kDispatch = 3,
  kTrajectory = 4,
  kReject = 5,
  kCloseGroup = 6,
  kLease = 7,
  kCommit = 8,
};

inline constexpr size_t kRecordAlign = 64;

struct RecordHeader {
  RecordType type = RecordType::kOpening;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  int64_t sequence = 0;
  uint32_t segment = 0;
  // Of a trajectory: whose record it is, should the payload be lost; and its version, so that
  // replay need not decode it.
  int32_t member = 0;
  int32_t attempt = 0;
  int64_t trajectory_id = 0;
  int64_t group_id = 0;
  int64_t min_version = 0;
  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

// Bytes that a record takes in a segment.
int64_t RecordBytes(size_t payload_bytes);
// Appends the record to `out`, with its checksums computed.
void AppendRecord(RecordHeader header, std::string_view payload, std::string& out);
// nullopt: not the beginning of a record.
std::optional<RecordHeader> ParseHeader(std::string_view bytes);

struct Opening {
  int32_t group_size = 0;
  // The last good record before this segment; later ones are refused writes.
  int64_t previous_sequence = 0;
  friend bool operator==(const Opening&, const Opening&) = default;
};
struct RejectRecord {
  RejectReason reason = RejectReason::kOutcome;
  std::vector<TrajectoryId> ids;
  friend bool operator==(const RejectRecord&, const RejectRecord&) = default;
};
// Also the form of a commit: the batch up to which, and the trajectories that it consumes, so that
// a lost lease cannot make them trained on twice.
struct LeaseRecord {
  int64_t sequence = 0, learner_version = 0;
  std::vector<int64_t> trajectory_ids;
  friend bool operator==(const LeaseRecord&, const LeaseRecord&) = default;
};

// Payloads. The parsers give kDataLoss for anything that the encoders did not write.
std::string EncodeOpening(const Opening& opening);
Result<Opening> ParseOpening(std::string_view payload);
std::string EncodeDispatch(const TrajectoryId& id);
Result<TrajectoryId> ParseDispatch(std::string_view payload);
std::string EncodeReject(const RejectRecord& reject);
Result<RejectRecord> ParseReject(std::string_view payload);
std::string EncodeLease(const LeaseRecord& lease);
Result<LeaseRecord> ParseLease(std::string_view payload);
std::string EncodeNumber(int64_t number);  // CloseGroup: the group
Result<int64_t> ParseNumber(std::string_view payload);

}  // namespace forebay::buffer
