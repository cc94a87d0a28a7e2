// The records of the log: a header of 64 bytes, a payload, padding to 64 bytes.
//
// Header and payload have a checksum each: with the header intact, a damaged payload can still be
// skipped and named. Sequences grow by one from record to record and are never used twice in a log.
// The header names its segment, because segments are recycled: what an earlier life left behind is
// no record of this one.
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
  kPad = 1,         // nothing, up to the next block
  kDispatch = 2,    // header only
  kTrajectory = 3,  // payload: the encoded trajectory
  kReject = 4,      // header only; the reason is the header's code
  kCloseGroup = 5,  // header only
  kLease = 6,       // payload: LeaseRecord
  kCommit = 7,      // payload: LeaseRecord, the batch up to which, and every trajectory it consumes
  kRelease = 8,     // header only; the batch is in trajectory_id
  kConsume = 9,     // payload: LeaseRecord without a batch: a reader acknowledged these
  kUnfinished = 10,  // kOs: a trajectory that is being copied; its real header comes last
};
inline constexpr uint8_t kRecordTypeMax = 10;
// Whether the payload is a LeaseRecord.
constexpr bool HoldsLease(RecordType type) {
  return type == RecordType::kLease || type == RecordType::kCommit || type == RecordType::kConsume;
}
// The code of a kTrajectory record that is a copy of an earlier one, whose segment is to be freed.
inline constexpr uint8_t kMovedRecord = 1;

inline constexpr size_t kRecordAlign = 64;

// As it lies in the log, little-endian.
struct RecordHeader {
  uint32_t crc = 0;  // of the 60 bytes that follow
  RecordType type = RecordType::kPad;
  uint8_t code = 0;  // kReject: RejectReason
  uint16_t zero = 0;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // not of pads
  int64_t sequence = 0;
  uint32_t segment = 0;
  uint32_t min_version = 0;  // kTrajectory
  // kDispatch, kTrajectory, kReject: whose record it is, should the payload be lost.
  int64_t trajectory_id = 0;
  int64_t group_id = 0;
  int64_t task_id = 0;
  uint16_t member = 0, attempt = 0;
  float priority = 0;  // kTrajectory

  TrajectoryId id() const {
    return {.trajectory_id = trajectory_id,
            .group_id = group_id,
            .member = member,
            .attempt = attempt,
            .task_id = task_id};
  }
  void SetId(const TrajectoryId& id);  // CHECKs that member and attempt fit
};
static_assert(sizeof(RecordHeader) == kRecordAlign);

// Bytes that a record takes in a segment.
constexpr int64_t RecordBytes(size_t payload_bytes) {
  return static_cast<int64_t>((2 * kRecordAlign - 1 + payload_bytes) / kRecordAlign * kRecordAlign);
}
// Sets header.crc.
void SealHeader(RecordHeader& header);
// Of a pad that takes `bytes` with its header (a multiple of kRecordAlign, at least one), sealed.
RecordHeader PadHeader(int64_t bytes, int64_t sequence, uint32_t segment);
// nullopt: not the header of a record of this segment.
std::optional<RecordHeader> ParseHeader(std::string_view bytes, uint32_t segment);

// The batch, and its trajectories, named so that a lost lease cannot make them trained on twice.
struct LeaseRecord {
  int64_t sequence = 0, learner_version = 0;
  std::vector<int64_t> trajectory_ids;
  friend bool operator==(const LeaseRecord&, const LeaseRecord&) = default;
};
std::string EncodeLease(const LeaseRecord& lease);
// kDataLoss for anything that EncodeLease did not write.
Result<LeaseRecord> ParseLease(std::string_view payload);

}  // namespace forebay::buffer
