// Header, little-endian:
//    0 u32 magic          4 u32 crc of bytes 8..63   8 u32 crc of the payload   12 u32
//    payload_bytes
//   16 i64 sequence      24 u32 segment             28 i32 member
//   32 i64 trajectory_id 40 i64 group_id            48 i64 min_version
//   56 i32 attempt       60 u8 type                 61 u8 x 3: 0
#include "forebay/buffer/log/record.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/bytes.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

constexpr uint32_t kMagic = 0x43524246;  // "FBRC"
constexpr uint16_t kLogFormat = 1;
constexpr char kEndMark =
    '\xfb';  // tells a record that is all there from one that was cut by a crash
constexpr size_t kIdBytes = 32;

void PutId(const TrajectoryId& id, ByteWriter& out) {
  out.Put(id.trajectory_id);
  out.Put(id.group_id);
  out.Put(id.member);
  out.Put(id.attempt);
  out.Put(id.task_id);
}

TrajectoryId GetId(ByteReader& in) {
  TrajectoryId id;
  id.trajectory_id = in.Get<int64_t>();
  id.group_id = in.Get<int64_t>();
  id.member = in.Get<int32_t>();
  id.attempt = in.Get<int32_t>();
  id.task_id = in.Get<int64_t>();
  return id;
}

template <typename T>
Result<T> Complete(const ByteReader& in, T value, std::string_view what) {
  if (!in.AtEnd()) return DataLoss(std::string(what) + " record: cut short or too long");
  return value;
}

}  // namespace

int64_t RecordBytes(size_t payload_bytes) {
  return static_cast<int64_t>((kRecordAlign + payload_bytes + 1 + kRecordAlign - 1) / kRecordAlign *
                              kRecordAlign);
}

void AppendRecord(RecordHeader header, std::string_view payload, std::string& out) {
  ByteWriter tail;
  tail.Put(Crc32c(payload));
  tail.Put(static_cast<uint32_t>(payload.size()));
  tail.Put(header.sequence);
  tail.Put(header.segment);
  tail.Put(header.member);
  tail.Put(header.trajectory_id);
  tail.Put(header.group_id);
  tail.Put(header.min_version);
  tail.Put(header.attempt);
  tail.Put(static_cast<uint32_t>(header.type));
  const std::string rest = std::move(tail).Take();
  ByteWriter head;
  head.Put(kMagic);
  head.Put(Crc32c(rest));
  const size_t end = out.size() + static_cast<size_t>(RecordBytes(payload.size()));
  out += std::move(head).Take();
  out += rest;
  out += payload;
  out += kEndMark;
  out.resize(end, '\0');
}

std::optional<RecordHeader> ParseHeader(std::string_view bytes) {
  if (bytes.size() < kRecordAlign) return std::nullopt;
  ByteReader in(bytes.substr(0, kRecordAlign));
  if (in.Get<uint32_t>() != kMagic) return std::nullopt;
  if (in.Get<uint32_t>() != Crc32c(bytes.substr(8, kRecordAlign - 8))) return std::nullopt;
  RecordHeader header;
  header.payload_crc = in.Get<uint32_t>();
  header.payload_bytes = in.Get<uint32_t>();
  header.sequence = in.Get<int64_t>();
  header.segment = in.Get<uint32_t>();
  header.member = in.Get<int32_t>();
  header.trajectory_id = in.Get<int64_t>();
  header.group_id = in.Get<int64_t>();
  header.min_version = in.Get<int64_t>();
  header.attempt = in.Get<int32_t>();
  const auto type = in.Get<uint32_t>();
  if (type < static_cast<uint32_t>(RecordType::kOpening) ||
      type > static_cast<uint32_t>(RecordType::kCommit)) {
    return std::nullopt;
  }
  header.type = static_cast<RecordType>(type);
  return header;
}

std::string EncodeOpening(const Opening& opening) {
  ByteWriter out;
  out.Put(kLogFormat);
  out.Put(opening.group_size);
  out.Put(opening.previous_sequence);
  return std::move(out).Take();
}

Result<Opening> ParseOpening(std::string_view payload) {
  ByteReader in(payload);
  const auto format = in.Get<uint16_t>();
  Opening opening;
  opening.group_size = in.Get<int32_t>();
  opening.previous_sequence = in.Get<int64_t>();
  if (in.ok() && format != kLogFormat) {
    return FailedPrecondition("the buffer's log has format " + std::to_string(format) +
                              ", this build reads " + std::to_string(kLogFormat));
  }
  return Complete(in, opening, "opening");
}

std::string EncodeDispatch(const TrajectoryId& id) {
  ByteWriter out;
  PutId(id, out);
  return std::move(out).Take();
}

Result<TrajectoryId> ParseDispatch(std::string_view payload) {
  ByteReader in(payload);
  const TrajectoryId id = GetId(in);
  return Complete(in, id, "dispatch");
}

std::string EncodeReject(const RejectRecord& reject) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(reject.reason));
  out.Put(static_cast<uint32_t>(reject.ids.size()));
  for (const TrajectoryId& id : reject.ids) PutId(id, out);
  return std::move(out).Take();
}

Result<RejectRecord> ParseReject(std::string_view payload) {
  ByteReader in(payload);
  const auto reason = in.Get<uint8_t>();
  if (reason >= kRejectReasons) return DataLoss("reject record: unknown reason");
  RejectRecord reject{.reason = static_cast<RejectReason>(reason)};
  const auto count = in.Get<uint32_t>();
  if (!in.Fits(count, kIdBytes)) return DataLoss("reject record: fewer ids than counted");
  for (uint32_t i = 0; i < count; ++i) reject.ids.push_back(GetId(in));
  return Complete(in, std::move(reject), "reject");
}

std::string EncodeLease(const LeaseRecord& lease) {
  ByteWriter out;
  out.Put(lease.sequence);
  out.Put(lease.learner_version);
  out.Put(static_cast<uint32_t>(lease.trajectory_ids.size()));
  out.PutColumn(lease.trajectory_ids);
  return std::move(out).Take();
}

Result<LeaseRecord> ParseLease(std::string_view payload) {
  ByteReader in(payload);
  LeaseRecord lease;
  lease.sequence = in.Get<int64_t>();
  lease.learner_version = in.Get<int64_t>();
  lease.trajectory_ids = in.GetColumn<int64_t>(in.Get<uint32_t>());
  return Complete(in, std::move(lease), "lease");
}

std::string EncodeNumber(int64_t number) {
  ByteWriter out;
  out.Put(number);
  return std::move(out).Take();
}

Result<int64_t> ParseNumber(std::string_view payload) {
  ByteReader in(payload);
  const auto number = in.Get<int64_t>();
  return Complete(in, number, "numbered");
}

}  // namespace forebay::buffer
