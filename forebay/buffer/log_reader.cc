#include "forebay/buffer/log_reader.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/log_reader_file.h"

namespace forebay::buffer {
namespace {

constexpr std::array<std::string_view, kLogEvents> kEventNames = {
    "dispatch", "trajectory", "reject", "close_group", "lease", "commit", "release", "consume"};
constexpr size_t kNotesMax = 1000;

bool HoldsLog(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return ParseSegmentName(name).has_value() || std::ranges::count(kStateNames, name) > 0;
  });
}

// The number that the rest of a segment gives it when its own header is lost; 0: none.
uint32_t GuessNumber(ReadOnlyFile& file) {
  SegmentTrailer trailer;
  constexpr auto kTrailerBytes = static_cast<int64_t>(sizeof(trailer));
  if (file.bytes() > kTrailerBytes && file.bytes() <= kToolFileBytesMax &&
      file.ReadAt(file.bytes() - kTrailerBytes, reinterpret_cast<char*>(&trailer), sizeof(trailer))
          .ok() &&
      trailer.number != 0 && ReadIndex(file, trailer.number)) {
    return trailer.number;
  }
  RecordHeader header;
  char raw[sizeof(header)];
  if (!file.ReadAt(kDataBegin, raw, sizeof(raw)).ok()) return 0;
  std::memcpy(&header, raw, sizeof(header));
  return ParseHeader({raw, sizeof(raw)}, header.segment) ? header.segment : 0;
}

}  // namespace

std::string_view LogEventName(LogEvent event) { return kEventNames[static_cast<size_t>(event)]; }

std::string_view SegmentStateName(SegmentInfo::State state) {
  constexpr std::array<std::string_view, 4> kNames = {"free", "live", "sealed", "damaged"};
  return kNames[static_cast<size_t>(state)];
}

std::string_view FateName(Fate::Kind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"pending", "leased", "trained", "rejected",
                                                      "unknown"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t SegmentInfo::records_total() const {
  return std::accumulate(records.begin(), records.end(), int64_t{0});
}

LogReader::~LogReader() = default;

Result<std::unique_ptr<LogReader>> LogReader::Open(const std::string& folder) {
  FB_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(folder));
  std::string found = folder;
  while (found.size() > 1 && found.ends_with('/')) found.pop_back();
  if (!HoldsLog(names)) {
    std::vector<std::string> below;
    for (const std::string& name : names) {
      const Result<std::vector<std::string>> inner = ListFolder(fmt::format("{}/{}", found, name));
      if (inner.ok() && HoldsLog(*inner)) below.push_back(name);
    }
    if (std::ranges::count(below, "buffer") > 0) below = {"buffer"};
    if (below.empty()) {
      return NotFound(fmt::format(
          "'{}' holds no buffer: name a run directory, or a folder with segment-*.log files",
          folder));
    }
    if (below.size() > 1) {
      return InvalidArgument(fmt::format("'{}' holds several buffers: name one of {}/{{{}}}",
                                         folder, found, fmt::join(below, ",")));
    }
    found += "/" + below[0];
  }
  std::unique_ptr<LogReader> reader(new LogReader(found));
  FB_RETURN_IF_ERROR(reader->Refresh());
  return reader;
}

Status LogReader::Refresh() {
  FB_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder_));
  segments_.clear();
  described_ = false;
  located_ = false;
  for (const std::string& name : names) {
    if (!ParseSegmentName(name)) continue;
    segments_.push_back(Look(name));
  }
  std::ranges::stable_sort(segments_, {}, [](const SegmentInfo& s) {
    return std::tuple(s.number == 0, s.number, s.file);
  });
  return OkStatus();
}

const std::vector<SegmentInfo>& LogReader::segments() {
  if (!described_) {
    for (SegmentInfo& info : segments_) {
      if (info.number != 0) LookInside(info);
    }
    described_ = true;
  }
  return segments_;
}

void LogReader::Note(std::string note) {
  // A log is gone through more than once.
  if (notes_.size() >= kNotesMax || std::ranges::count(notes_, note) > 0) return;
  notes_.push_back(std::move(note));
}

std::vector<std::string> LogReader::TakeNotes() { return std::exchange(notes_, {}); }

// From its first and last bytes.
SegmentInfo LogReader::Look(const std::string& name) const {
  SegmentInfo info{.file = name};
  const auto damaged = [&info](std::string problem) {
    info.state = SegmentInfo::State::kDamaged;
    info.problem = std::move(problem);
    return info;
  };
  const Result<std::unique_ptr<ReadOnlyFile>> file = ReadOnlyFile::Open(Path(info));
  if (!file.ok()) return damaged(file.status().message());
  info.bytes = (*file)->bytes();
  std::string block(std::min<size_t>(kBlockBytes, static_cast<size_t>(info.bytes)), '\0');
  if (const Status read = (*file)->ReadAt(0, block.data(), block.size()); !read.ok()) {
    return damaged(read.message());
  }
  const Result<SegmentHeader> header = ParseSegmentHeader(block);
  if (!header.ok()) {
    if (header.status().code() == StatusCode::kFailedPrecondition) {
      info.foreign = true;
      return damaged(header.status().message());
    }
    info.number = GuessNumber(**file);
    // Space that was prepared and never used.
    if (info.number == 0 && block.find_first_not_of('\0') == std::string::npos) return info;
    return damaged(info.number == 0 ? "its header is damaged, and nothing in it says which it is"
                                    : fmt::format("its header is damaged; its records are those "
                                                  "of segment {}",
                                                  info.number));
  }
  info.number = header->number;
  info.group_size = header->group_size;
  info.first_sequence = header->first_sequence;
  if (info.number != 0) info.state = SegmentInfo::State::kLive;
  info.capacity = header->capacity;
  return info;
}

// Counts its records, from the index if there is one.
void LogReader::LookInside(SegmentInfo& info) {
  std::optional<SegmentScan> scan;
  std::string bytes;  // outlives the scan's views
  if (info.bytes <= kToolFileBytesMax) {
    const Result<std::unique_ptr<ReadOnlyFile>> file = ReadOnlyFile::Open(Path(info));
    if (file.ok()) scan = ReadIndex(**file, info.number);
  }
  if (scan) {
    if (info.state == SegmentInfo::State::kLive) info.state = SegmentInfo::State::kSealed;
  } else {
    Result<std::string> content = ReadSegment(info);
    if (!content.ok()) {
      info.state = SegmentInfo::State::kDamaged;
      info.problem = content.status().message();
      return;
    }
    if (info.bytes < info.capacity && info.state != SegmentInfo::State::kDamaged) {
      info.state = SegmentInfo::State::kDamaged;
      info.problem = fmt::format("it was cut: {} bytes of {}", info.bytes, info.capacity);
    }
    bytes = std::move(*content);
    scan = ScanSegment(bytes, info.number);
  }
  info.first_sequence = scan->records.empty() ? 0 : scan->records.front().header.sequence;
  info.last_sequence = scan->records.empty() ? 0 : scan->records.back().header.sequence;
  info.data_bytes =
      std::max<int64_t>(0, static_cast<int64_t>(scan->data_end) - static_cast<int64_t>(kDataBegin));
  for (const ScannedRecord& record : scan->records) {
    if (const auto event = EventOf(record.header)) ++info.records[static_cast<size_t>(*event)];
  }
  const auto lost = static_cast<int64_t>(
      std::ranges::count_if(scan->damaged, [](const DamagedRange& d) { return !d.torn_tail; }));
  if (lost > 0 && info.state != SegmentInfo::State::kDamaged) {
    info.state = SegmentInfo::State::kDamaged;
    info.problem = fmt::format("{} damaged range{} (verify says more)", lost, lost == 1 ? "" : "s");
  }
}

std::optional<LogEvent> LogReader::EventOf(const RecordHeader& header) {
  switch (header.type) {
    case RecordType::kPad:
    case RecordType::kUnfinished:
      return std::nullopt;
    case RecordType::kDispatch:
      return LogEvent::kDispatch;
    case RecordType::kTrajectory:
      return LogEvent::kTrajectory;
    case RecordType::kReject:
      return LogEvent::kReject;
    case RecordType::kCloseGroup:
      return LogEvent::kCloseGroup;
    case RecordType::kLease:
      return LogEvent::kLease;
    case RecordType::kCommit:
      return LogEvent::kCommit;
    case RecordType::kRelease:
      return LogEvent::kRelease;
    case RecordType::kConsume:
      return LogEvent::kConsume;
  }
  return std::nullopt;
}

Result<std::string> LogReader::ReadSegment(const SegmentInfo& segment) {
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<ReadOnlyFile> file, ReadOnlyFile::Open(Path(segment)));
  int64_t unreadable = 0;
  FB_ASSIGN_OR_RETURN(std::string bytes, file->ReadRange(0, file->bytes(), &unreadable));
  if (unreadable > 0) {
    Note(fmt::format("{}: the disk cannot read {} bytes of it", segment.file, unreadable));
  }
  // The writer may have begun it anew meanwhile.
  std::string block(std::min(kBlockBytes, bytes.size()), '\0');
  FB_RETURN_IF_ERROR(file->ReadAt(0, block.data(), block.size()));
  const Result<SegmentHeader> header = ParseSegmentHeader(block);
  if (header.ok() && header->number != segment.number) {
    return NotFound(fmt::format("segment {} ({}) was recycled while it was read", segment.number,
                                segment.file));
  }
  return bytes;
}

}  // namespace forebay::buffer
