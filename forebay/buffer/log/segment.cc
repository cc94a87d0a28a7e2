#include "forebay/buffer/log/segment.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "fmt/core.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/record.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

constexpr std::string_view kPrefix = "segment-", kSuffix = ".log";

// The header at `at` when its record lies within the bytes of this segment.
std::optional<RecordHeader> HeaderAt(std::string_view bytes, size_t at, uint32_t number) {
  const std::optional<RecordHeader> header = ParseHeader(bytes.substr(at));
  if (!header || header->segment != number) return std::nullopt;
  if (static_cast<size_t>(RecordBytes(header->payload_bytes)) > bytes.size() - at)
    return std::nullopt;
  return header;
}

// A damaged range that is being collected, and what can still be said about it.
class Damage {
 public:
  enum class What { kBytes, kRecord, kCompleteRecord };
  void Add(size_t at, size_t bytes, std::optional<TrajectoryId> lost, What what) {
    if (!range_) range_ = DamagedRange{.offset = at};
    if (what != What::kBytes && ++records_ > 1) range_->records = records_;
    range_->bytes = at + bytes - range_->offset;
    if (lost) range_->lost.push_back(*lost);
    complete_ = complete_ || what == What::kCompleteRecord;
  }
  // Before a valid record.
  void Flush(SegmentScan& scan) {
    if (range_) scan.damaged.push_back(std::move(*range_));
    range_.reset();
    complete_ = false;
    records_ = 0;
  }
  // At the end of the segment: zeros are space that was never written.
  void FlushTail(std::string_view bytes, SegmentScan& scan) {
    if (!range_) return;
    const size_t last = bytes.substr(range_->offset, range_->bytes).find_last_not_of('\0');
    if (last == std::string_view::npos) return;
    range_->bytes = last + 1;
    range_->torn_tail = !complete_;
    Flush(scan);
  }

 private:
  std::optional<DamagedRange> range_;
  bool complete_ = false;
  int64_t records_ = 0;
};

}  // namespace

std::string SegmentName(uint32_t number) {
  return fmt::format("{}{:010}{}", kPrefix, number, kSuffix);
}

std::optional<uint32_t> ParseSegmentName(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

SegmentScan ScanSegment(std::string_view bytes, uint32_t number) {
  SegmentScan scan;
  Damage damage;
  size_t at = 0;
  int64_t last_sequence = -1;
  while (at < bytes.size()) {
    const std::optional<RecordHeader> header = HeaderAt(bytes, at, number);
    if (!header) {
      // Its header is lost, or this is the middle of something: look on, and for the id in a
      // payload.
      const size_t step = std::min(kRecordAlign, bytes.size() - at);
      std::optional<TrajectoryId> lost;
      if (bytes.size() - at > kRecordAlign) lost = PeekId(bytes.substr(at + kRecordAlign));
      damage.Add(at, step, lost, Damage::What::kBytes);
      at += step;
      continue;
    }
    const std::string_view payload = bytes.substr(at + kRecordAlign, header->payload_bytes);
    const auto size = static_cast<size_t>(RecordBytes(header->payload_bytes));
    if (header->sequence <= last_sequence || Crc32c(payload) != header->payload_crc) {
      std::optional<TrajectoryId> lost;
      if (header->type == RecordType::kTrajectory) {
        lost = TrajectoryId{.trajectory_id = header->trajectory_id,
                            .group_id = header->group_id,
                            .member = header->member,
                            .attempt = header->attempt};
      }
      const bool complete = bytes[at + kRecordAlign + header->payload_bytes] != '\0';
      damage.Add(at, size, lost, complete ? Damage::What::kCompleteRecord : Damage::What::kRecord);
    } else {
      damage.Flush(scan);
      scan.records.push_back({.header = *header, .offset = at, .payload = payload});
      scan.valid_end = at + size;
      last_sequence = header->sequence;
    }
    at += size;
  }
  damage.FlushTail(bytes, scan);
  return scan;
}

}  // namespace forebay::buffer
