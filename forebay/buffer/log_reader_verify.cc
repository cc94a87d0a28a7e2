// Looking at every byte of a log.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/log_reader_check.h"
#include "forebay/buffer/log_reader_file.h"
#include "forebay/buffer/log_reader_replayed.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// What a live writer is at may look damaged: it is looked at again so often before it counts.
constexpr int kLooksMax = 5;
constexpr auto kLookAgain = std::chrono::milliseconds(50);
constexpr size_t kLostNamedMax = 100;

bool IsDamaged(const SegmentScan& scan) {
  return std::ranges::any_of(scan.damaged, [](const DamagedRange& d) { return !d.torn_tail; });
}

auto BytesOf(const RecordHeader& header) {
  return std::bit_cast<std::array<char, sizeof(RecordHeader)>>(header);
}

}  // namespace

std::string CheckRecord(const ScannedRecord& record) {
  switch (record.header.type) {
    case RecordType::kTrajectory: {
      const Result<Trajectory> trajectory = Decode(record.payload);
      if (!trajectory.ok()) return trajectory.status().message();
      if (trajectory->id != record.header.id()) return "its header names another trajectory";
      return {};
    }
    case RecordType::kLease:
    case RecordType::kCommit:
    case RecordType::kConsume: {
      const Result<LeaseRecord> lease = ParseLease(record.payload);
      return lease.ok() ? std::string() : lease.status().message();
    }
    default:
      return {};
  }
}

std::string CheckIndex(LogFile& file, std::string_view bytes, uint32_t number,
                       const SegmentScan& scan) {
  const std::optional<SegmentScan> index = ReadIndex(file, number);
  if (!index) {
    // Without a trailer it was never sealed; one that nearly fits was damaged.
    SegmentTrailer trailer;
    if (bytes.size() < sizeof(trailer)) return {};
    const char* raw = bytes.data() + bytes.size() - sizeof(trailer);
    std::memcpy(&trailer, raw, sizeof(trailer));
    const bool whole = Crc32c({raw + 8, sizeof(trailer) - 8}) == trailer.crc;
    const bool nearly =
        trailer.number == number ||
        (trailer.data_end == static_cast<int64_t>(scan.data_end) && !scan.records.empty());
    if (!whole && nearly) return "the end of its index is damaged; its records were found without";
    if (whole && trailer.number == number) {
      return "its index is damaged; its records were found without";
    }
    return {};
  }
  // What the index names was found, but for what lies in damaged ranges.
  std::map<size_t, const ScannedRecord*> named;
  for (const ScannedRecord& record : index->records) named[record.offset] = &record;
  for (const ScannedRecord& record : scan.records) {
    const auto at = named.find(record.offset);
    if (at == named.end() || BytesOf(at->second->header) != BytesOf(record.header)) {
      return fmt::format("its index is wrong about the record at {}", record.offset);
    }
    named.erase(at);
  }
  for (const auto& [offset, record] : named) {
    const bool damaged = std::ranges::any_of(scan.damaged, [at = offset](const DamagedRange& d) {
      return at >= d.offset && at < d.offset + d.bytes;
    });
    if (!damaged) return fmt::format("its index names a record at {} that is not there", offset);
  }
  return {};
}

void LogReader::VerifySegment(const SegmentInfo& segment, const Found& found,
                              VerifyTotals* totals) {
  if (!segment.problem.empty()) {
    found({.file = segment.file,
           .segment = segment.number,
           .bytes = segment.number == 0 ? segment.bytes : 0,
           .what = segment.problem});
  }
  if (segment.number == 0) return;
  const Result<std::unique_ptr<ReadOnlyFile>> file = ReadOnlyFile::Open(Path(segment));
  Result<std::string> bytes = ReadSegment(segment);
  if (!file.ok() || !bytes.ok()) {
    const Status& why = file.ok() ? bytes.status() : file.status();
    if (why.code() == StatusCode::kNotFound) {
      Note(why.message());
    } else {
      found({.file = segment.file, .segment = segment.number, .what = why.message()});
    }
    return;
  }
  SegmentScan scan = ScanSegment(*bytes, segment.number);
  for (int looks = 1; IsDamaged(scan) && looks < kLooksMax && !ReadIndex(**file, segment.number);
       ++looks) {
    std::this_thread::sleep_for(kLookAgain);
    Result<std::string> again = ReadSegment(segment);
    if (!again.ok()) return Note(again.status().message());
    *bytes = std::move(*again);
    scan = ScanSegment(*bytes, segment.number);
  }
  if (segment.bytes < segment.capacity && !ReadIndex(**file, segment.number)) {
    found({.file = segment.file,
           .segment = segment.number,
           .offset = segment.bytes,
           .bytes = segment.capacity - segment.bytes,
           .what = "it was cut; what lay behind is lost"});
  }
  ++totals->segments;
  totals->bytes += static_cast<int64_t>(scan.data_end);
  totals->records += static_cast<int64_t>(scan.records.size());
  for (const DamagedRange& range : scan.damaged) {
    LogDamage damage{.file = segment.file,
                     .segment = segment.number,
                     .offset = static_cast<int64_t>(range.offset),
                     .bytes = static_cast<int64_t>(range.bytes),
                     .harmless = range.torn_tail};
    if (range.torn_tail) {
      damage.what = "no whole record follows: space for the next ones, or a write that a crash cut";
    } else {
      damage.records = range.records;
      damage.lost = range.lost;
      damage.what = "damaged";
    }
    found(damage);
  }
  for (const ScannedRecord& record : scan.records) {
    if (record.header.type == RecordType::kTrajectory) ++totals->trajectories;
    const std::string wrong = CheckRecord(record);
    if (wrong.empty()) continue;
    LogDamage damage{.file = segment.file,
                     .segment = segment.number,
                     .offset = static_cast<int64_t>(record.offset),
                     .bytes = RecordBytes(record.header.payload_bytes),
                     .records = 1,
                     .what = "its checksums are right, its content is not: " + wrong};
    if (record.header.type == RecordType::kTrajectory) damage.lost.push_back(record.header.id());
    found(damage);
  }
  const std::string index = CheckIndex(**file, *bytes, segment.number, scan);
  if (!index.empty()) found({.file = segment.file, .segment = segment.number, .what = index});
}

void LogReader::VerifyState(const Found& found) {
  int whole = 0;
  std::vector<LogDamage> damaged;
  for (const char* name : kStateNames) {
    const Result<std::unique_ptr<ReadOnlyFile>> file = ReadOnlyFile::Open(folder_ + "/" + name);
    if (file.status().code() == StatusCode::kNotFound) continue;
    int64_t unreadable = 0;
    const Result<std::string> bytes =
        file.ok() ? (*file)->ReadRange(0, (*file)->bytes(), &unreadable) : file.status();
    if (bytes.ok() && bytes->find_first_not_of('\0') == std::string::npos) continue;  // not written
    const Result<State> state = bytes.ok() ? ParseState(*bytes) : bytes.status();
    const Status table = state.ok() ? Table::DecodeSnapshot(state->table).status() : state.status();
    if (table.ok()) {
      ++whole;
      continue;
    }
    damaged.push_back({.file = name,
                       .bytes = bytes.ok() ? static_cast<int64_t>(bytes->size()) : 0,
                       .what = table.message()});
  }
  for (LogDamage& damage : damaged) {
    damage.harmless = whole > 0;
    if (damage.harmless) damage.what += " (another state file is whole)";
    found(damage);
  }
  // What is pending must be there. A live buffer may recycle it meanwhile: look again.
  for (int looks = 1;; ++looks) {
    const Result<std::unique_ptr<Replayed>> replayed = ReplayLog();
    if (!replayed.ok()) {
      if (segments_.empty()) return;
      found({.file = "state", .what = replayed.status().message()});
      return;
    }
    LogDamage missing{
        .file = "state",
        .records = static_cast<int64_t>((*replayed)->lost.size()) + (*replayed)->lost_unnamed,
        .lost = std::move((*replayed)->lost),
        .what = "pending, and not in the log"};
    missing.lost.resize(std::min(missing.lost.size(), kLostNamedMax));
    if (missing.records == 0) return;
    if (looks == kLooksMax || !Refresh().ok()) {
      found(missing);
      return;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

Status LogReader::Verify(const Found& found, VerifyTotals* totals) {
  FB_RETURN_IF_ERROR(Refresh());
  const Found counted = [&](const LogDamage& damage) {
    ++(damage.harmless ? totals->harmless : totals->damaged);
    found(damage);
  };
  const std::vector<SegmentInfo> segments = segments_;
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentInfo& segment = segments[i];
    if (segment.number != 0 && i > 0 && segments[i - 1].number == segment.number) {
      counted({.file = segment.file,
               .segment = segment.number,
               .what = fmt::format("it is segment {}, as {} is", segment.number,
                                   segments[i - 1].file)});
    }
    VerifySegment(segment, counted, totals);
  }
  VerifyState(counted);
  return OkStatus();
}

}  // namespace forebay::buffer
