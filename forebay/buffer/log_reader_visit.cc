// Going through the records of a log.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/log_reader_file.h"

namespace forebay::buffer {

bool LogReader::Matches(const RecordHeader& header, const LogFilter& filter) {
  const std::optional<LogEvent> event = EventOf(header);
  return event && header.sequence >= filter.from_sequence &&
         filter.events[static_cast<size_t>(*event)];
}

// nullopt, with a note, for a payload that its writer did not write.
std::optional<LogRecord> LogReader::ToRecord(const ScannedRecord& scanned, uint32_t segment) {
  const RecordHeader& header = scanned.header;
  const std::optional<LogEvent> event = EventOf(header);
  if (!event) return std::nullopt;
  LogRecord record{.event = *event,
                   .sequence = header.sequence,
                   .segment = segment,
                   .offset = static_cast<int64_t>(scanned.offset),
                   .bytes = RecordBytes(header.payload_bytes),
                   .payload_bytes = header.payload_bytes};
  switch (header.type) {
    case RecordType::kDispatch:
    case RecordType::kCloseGroup:
      record.id = header.id();
      break;
    case RecordType::kReject:
      record.id = header.id();
      record.reason = static_cast<RejectReason>(std::min<uint8_t>(header.code, kRejectReasons - 1));
      break;
    case RecordType::kTrajectory:
      record.id = header.id();
      record.min_version = header.min_version;
      record.priority = header.priority;
      record.moved = header.code == kMovedRecord;
      record.encoded = scanned.payload;
      break;
    case RecordType::kRelease:
      record.batch = header.trajectory_id;
      break;
    case RecordType::kLease:
    case RecordType::kCommit:
    case RecordType::kConsume: {
      Result<LeaseRecord> lease = ParseLease(scanned.payload);
      if (!lease.ok()) {
        Note(fmt::format("record {} of segment {}: {}", header.sequence, segment,
                         lease.status().message()));
        return std::nullopt;
      }
      record.batch = lease->sequence;
      record.learner_version = lease->learner_version;
      record.trajectory_ids = std::move(lease->trajectory_ids);
      break;
    }
    case RecordType::kPad:
    case RecordType::kUnfinished:
      break;
  }
  return record;
}

// From the index, reading the payloads of leases only. nullopt: it has none. False: `visit` ended.
std::optional<bool> LogReader::VisitIndexed(const SegmentInfo& segment, const LogFilter& filter,
                                            const VisitScanned& visit) {
  const Result<std::unique_ptr<ReadOnlyFile>> file = ReadOnlyFile::Open(Path(segment));
  if (!file.ok() || (*file)->bytes() > kToolFileBytesMax) return std::nullopt;
  std::optional<SegmentScan> scan = ReadIndex(**file, segment.number);
  if (!scan) return std::nullopt;
  std::string payload;
  for (ScannedRecord& record : scan->records) {
    if (!Matches(record.header, filter)) continue;
    if (HoldsLease(record.header.type)) {
      if (!buffer::ReadPayload(**file, record.header, static_cast<int64_t>(record.offset), &payload)
               .ok()) {
        Note(fmt::format("record {} of segment {} is damaged", record.header.sequence,
                         segment.number));
        continue;
      }
      record.payload = payload;
    }
    if (!visit(record, segment.number)) return false;
  }
  return true;
}

bool LogReader::VisitSegment(const SegmentInfo& segment, const LogFilter& filter,
                             const VisitScanned& visit) {
  if (!filter.payloads) {
    const std::optional<bool> visited = VisitIndexed(segment, filter, visit);
    if (visited) return *visited;
  }
  const Result<std::string> bytes = ReadSegment(segment);
  if (!bytes.ok()) {
    Note(bytes.status().message());
    return true;
  }
  const SegmentScan scan = ScanSegment(*bytes, segment.number);
  for (const DamagedRange& range : scan.damaged) {
    if (range.torn_tail) continue;
    Note(fmt::format("{}: {} bytes at {} are damaged and were passed over", segment.file,
                     range.bytes, range.offset));
  }
  for (const ScannedRecord& scanned : scan.records) {
    if (!Matches(scanned.header, filter)) continue;
    if (!visit(scanned, segment.number)) return false;
  }
  return true;
}

// Whether all of a segment lies before `sequence`, as the next one's header says.
bool LogReader::EndsBefore(size_t segment, int64_t sequence) const {
  if (segment + 1 >= segments_.size()) return false;
  const SegmentInfo& next = segments_[segment + 1];
  return next.number > segments_[segment].number && next.first_sequence > 0 &&
         next.first_sequence <= sequence;
}

void LogReader::ForEachScanned(const LogFilter& filter, const VisitScanned& visit) {
  int64_t last = 0;
  // A copy of a segment under another name holds nothing new.
  const VisitScanned once = [&](const ScannedRecord& record, uint32_t segment) {
    if (record.header.sequence <= last) return true;
    last = record.header.sequence;
    return visit(record, segment);
  };
  for (size_t i = 0; i < segments_.size(); ++i) {
    const SegmentInfo& segment = segments_[i];
    if (segment.number == 0) {
      if (!segment.problem.empty()) Note(fmt::format("{}: {}", segment.file, segment.problem));
      continue;
    }
    if (EndsBefore(i, filter.from_sequence)) continue;
    if (!VisitSegment(segment, filter, once)) return;
  }
}

Status LogReader::ForEach(const LogFilter& filter, const Visit& visit) {
  ForEachScanned(filter, [&](const ScannedRecord& scanned, uint32_t segment) {
    std::optional<LogRecord> record = ToRecord(scanned, segment);
    if (!record) return true;
    if (!filter.payloads) record->encoded = {};
    return visit(*record);
  });
  return OkStatus();
}

Result<int64_t> LogReader::NthNewest(int64_t n, const LogFilter& filter) {
  LogFilter headers = filter;
  headers.payloads = false;
  int64_t oldest = 0;
  for (auto it = segments_.rbegin(); it != segments_.rend() && n > 0; ++it) {
    if (it->number == 0) continue;
    std::vector<int64_t> sequences;
    VisitSegment(*it, headers, [&](const ScannedRecord& record, uint32_t) {
      sequences.push_back(record.header.sequence);
      return true;
    });
    if (sequences.empty()) continue;
    const auto count = static_cast<int64_t>(sequences.size());
    oldest = sequences[static_cast<size_t>(std::max<int64_t>(0, count - n))];
    n -= count;
  }
  return oldest;
}

// The newest segment is read from where the last call stopped, up to the first record that is not
// complete: the writer is at it. Once there is a newer segment, an older one is read as a whole.
Status LogReader::Follow(int64_t sequence, const LogFilter& filter, const Visit& visit) {
  FB_RETURN_IF_ERROR(Refresh());
  LogFilter after = filter;
  after.from_sequence = std::max(filter.from_sequence, sequence + 1);
  const SegmentInfo* newest = nullptr;
  for (const SegmentInfo& segment : segments_) {
    if (segment.number != 0) newest = &segment;
  }
  if (newest == nullptr) return OkStatus();
  int64_t last = sequence;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const SegmentInfo& segment = segments_[i];
    if (segment.number == 0 || &segment == newest || segment.number < followed_segment_ ||
        EndsBefore(i, after.from_sequence)) {
      continue;
    }
    const VisitScanned once = [&](const ScannedRecord& scanned, uint32_t number) {
      if (scanned.header.sequence <= last) return true;
      last = scanned.header.sequence;
      const std::optional<LogRecord> record = ToRecord(scanned, number);
      return !record || visit(*record);
    };
    if (!VisitSegment(segment, after, once)) return OkStatus();
  }
  if (followed_segment_ != newest->number) {
    followed_segment_ = newest->number;
    followed_offset_ = kDataBegin;
  }
  const Result<std::unique_ptr<ReadOnlyFile>> file = ReadOnlyFile::Open(Path(*newest));
  if (!file.ok()) return OkStatus();  // removed meanwhile: the next call finds what came after
  std::string payload;
  char raw[kRecordAlign];
  while (followed_offset_ + static_cast<int64_t>(kRecordAlign) <= (*file)->bytes()) {
    if (!(*file)->ReadAt(followed_offset_, raw, sizeof(raw)).ok()) break;
    const std::optional<RecordHeader> header = ParseHeader({raw, sizeof(raw)}, newest->number);
    if (!header || RecordBytes(header->payload_bytes) > (*file)->bytes() - followed_offset_) break;
    if (header->type != RecordType::kPad &&
        !buffer::ReadPayload(**file, *header, followed_offset_, &payload).ok()) {
      break;
    }
    const ScannedRecord scanned{
        .header = *header, .offset = static_cast<size_t>(followed_offset_), .payload = payload};
    followed_offset_ += RecordBytes(header->payload_bytes);
    if (!Matches(*header, after)) continue;
    const std::optional<LogRecord> out = ToRecord(scanned, newest->number);
    if (out && !visit(*out)) return OkStatus();
  }
  return OkStatus();
}

}  // namespace forebay::buffer
