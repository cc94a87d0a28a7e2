#include "forebay/buffer/log/record.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/bytes.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

std::string_view Checked(const RecordHeader& header) {
  return std::string_view(reinterpret_cast<const char*>(&header), sizeof(header))
      .substr(sizeof(header.crc));
}

}  // namespace

void RecordHeader::SetId(const TrajectoryId& id) {
  FB_CHECK(id.member >= 0 && id.member <= std::numeric_limits<uint16_t>::max() && id.attempt >= 0 &&
               id.attempt <= std::numeric_limits<uint16_t>::max(),
           "a member or attempt that the table should have refused");
  trajectory_id = id.trajectory_id;
  group_id = id.group_id;
  task_id = id.task_id;
  member = static_cast<uint16_t>(id.member);
  attempt = static_cast<uint16_t>(id.attempt);
}

void SealHeader(RecordHeader& header) { header.crc = Crc32c(Checked(header)); }

RecordHeader PadHeader(int64_t bytes, int64_t sequence, uint32_t segment) {
  RecordHeader pad{
      .type = RecordType::kPad,
      .payload_bytes = static_cast<uint32_t>(bytes) - static_cast<uint32_t>(kRecordAlign),
      .sequence = sequence,
      .segment = segment};
  SealHeader(pad);
  return pad;
}

std::optional<RecordHeader> ParseHeader(std::string_view bytes, uint32_t segment) {
  if (bytes.size() < kRecordAlign) return std::nullopt;
  RecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.segment != segment || header.crc != Crc32c(Checked(header))) return std::nullopt;
  const auto type = static_cast<uint8_t>(header.type);
  if (type < 1 || type > kRecordTypeMax) return std::nullopt;
  return header;
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
  if (!in.AtEnd()) return DataLoss("lease record: cut short or too long");
  return lease;
}

}  // namespace forebay::buffer
