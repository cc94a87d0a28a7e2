#include "forebay/buffer/log_repair.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/log_reader_check.h"
#include "forebay/buffer/log_reader_file.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// A part of a segment that becomes padding.
struct Wound {
  size_t offset = 0, bytes = 0;
  std::vector<TrajectoryId> lost;
  std::string what;
};

class Repairer {
 public:
  Repairer(std::string folder, bool dry_run) : folder_(std::move(folder)), dry_run_(dry_run) {}

  Status Run(const std::vector<SegmentInfo>& segments) {
    for (const SegmentInfo& segment : segments) {
      if (segment.group_size > 0) group_size_ = segment.group_size;
    }
    const SegmentInfo* last = nullptr;
    for (const SegmentInfo& segment : segments) {
      if (segment.number != 0 && last != nullptr && last->number == segment.number) {
        FB_RETURN_IF_ERROR(SetAside(
            segment, fmt::format("a copy: {} is segment {} too", last->file, segment.number)));
        continue;
      }
      FB_RETURN_IF_ERROR(MendSegment(segment));
      if (segment.number != 0) last = &segment;
    }
    const bool from_the_first = !segments.empty() && segments.front().number == 1;
    return MendState(from_the_first);
  }
  RepairReport Take() && { return std::move(report_); }

 private:
  std::string Path(const std::string& file) const { return folder_ + "/" + file; }

  Status MendSegment(const SegmentInfo& segment);
  Status MendState(bool log_is_whole);
  // The segment's content without the wounds; kDataLoss when there is no room for padding.
  Result<std::string> Rewrite(const SegmentInfo& segment, std::string_view bytes,
                              const SegmentScan& scan, const std::vector<Wound>& wounds,
                              int64_t capacity, bool seal);
  Status SetAside(const SegmentInfo& segment, const std::string& why);
  // Copies bytes to quarantine under this name, or the next that is free. Gives the name.
  Result<std::string> Keep(const std::string& name, std::string_view bytes);
  void Unrepaired(std::string what) { report_.unrepaired.push_back(std::move(what)); }

  const std::string folder_;
  const bool dry_run_;
  int32_t group_size_ = 0;
  RepairReport report_;
};

Result<std::string> Repairer::Keep(const std::string& name, std::string_view bytes) {
  std::string kept = "quarantine/" + name;
  for (int copy = 2;; ++copy) {
    const Result<std::string> known = ReadFile(Path(kept), static_cast<size_t>(kToolFileBytesMax));
    if (known.status().code() == StatusCode::kNotFound) break;
    if (known.ok() && *known == bytes) return kept;
    kept = fmt::format("quarantine/{}.{}", name, copy);
  }
  if (dry_run_) return kept;
  FB_RETURN_IF_ERROR(MakeFolders(Path("quarantine")));
  FB_RETURN_IF_ERROR(SyncFolder(folder_));
  FB_RETURN_IF_ERROR(WriteFileAtomic(Path(kept), bytes));
  return kept;
}

// The whole file goes to quarantine, under its own name.
Status Repairer::SetAside(const SegmentInfo& segment, const std::string& why) {
  RepairAction action{.file = segment.file,
                      .segment = segment.number,
                      .bytes = segment.bytes,
                      .what = why + ": the file is moved"};
  std::string kept = "quarantine/" + segment.file;
  std::error_code error;
  for (int copy = 2; std::filesystem::exists(std::filesystem::symlink_status(Path(kept), error));
       ++copy) {
    kept = fmt::format("quarantine/{}.{}", segment.file, copy);
  }
  if (!dry_run_) {
    FB_RETURN_IF_ERROR(MakeFolders(Path("quarantine")));
    std::filesystem::rename(Path(segment.file), Path(kept), error);
    if (error) return ErrnoStatus("cannot move '" + Path(segment.file) + "'", error.value());
    FB_RETURN_IF_ERROR(SyncFolder(Path("quarantine")));
    FB_RETURN_IF_ERROR(SyncFolder(folder_));
  }
  action.kept_as = kept;
  report_.actions.push_back(std::move(action));
  return OkStatus();
}

Result<std::string> Repairer::Rewrite(const SegmentInfo& segment, std::string_view bytes,
                                      const SegmentScan& scan, const std::vector<Wound>& wounds,
                                      int64_t capacity, bool seal) {
  std::string out(static_cast<size_t>(capacity), '\0');
  std::vector<RecordHeader> headers;
  size_t at = kDataBegin;
  int64_t last_sequence = 0;
  const auto pad_to = [&](size_t end, int64_t before) -> Status {
    if (at >= end) return OkStatus();
    // A whole pad of the writer stays; anything else becomes one.
    std::optional<RecordHeader> pad = ParseHeader(bytes.substr(at), segment.number);
    if (!pad || pad->type != RecordType::kPad || pad->sequence <= last_sequence ||
        pad->sequence >= before ||
        at + static_cast<size_t>(RecordBytes(pad->payload_bytes)) != end) {
      if (before - 1 <= last_sequence) {
        return DataLoss(fmt::format("{}: between records {} and {} is no number left for padding",
                                    segment.file, last_sequence, before));
      }
      pad = RecordHeader{.type = RecordType::kPad,
                         .payload_bytes = static_cast<uint32_t>(end - at - kRecordAlign),
                         .sequence = before - 1,
                         .segment = segment.number};
      SealHeader(*pad);
    }
    std::memcpy(out.data() + at, &*pad, sizeof(*pad));
    headers.push_back(*pad);
    last_sequence = pad->sequence;
    at = end;
    return OkStatus();
  };
  for (const ScannedRecord& record : scan.records) {
    if (std::ranges::any_of(wounds, [&](const Wound& w) { return w.offset == record.offset; })) {
      continue;
    }
    FB_RETURN_IF_ERROR(pad_to(record.offset, record.header.sequence));
    const auto size = static_cast<size_t>(RecordBytes(record.header.payload_bytes));
    const std::string_view raw = bytes.substr(record.offset, size);
    std::memcpy(out.data() + record.offset, raw.data(), raw.size());
    headers.push_back(record.header);
    last_sequence = record.header.sequence;
    at = record.offset + size;
  }
  const SegmentHeader header{
      .number = segment.number,
      .capacity = capacity,
      .first_sequence = segment.first_sequence > 0
                            ? segment.first_sequence
                            : (headers.empty() ? int64_t{1} : headers.front().sequence),
      .group_size = segment.group_size > 0 ? segment.group_size : group_size_};
  const std::string block = EncodeSegmentHeader(header);
  std::memcpy(out.data(), block.data(), block.size());
  const int64_t index_bytes = IndexBytes(static_cast<int64_t>(headers.size()));
  if (seal && !headers.empty() && static_cast<int64_t>(at) <= capacity - index_bytes) {
    const std::string index = EncodeIndex(segment.number, headers, capacity);
    std::memcpy(out.data() + out.size() - index.size(), index.data(), index.size());
  }
  return out;
}

Status Repairer::MendSegment(const SegmentInfo& segment) {
  if (segment.number == 0) {
    if (segment.problem.empty()) return OkStatus();
    std::error_code error;
    if (!ReadOnlyFile::Open(Path(segment.file)).ok() &&
        std::filesystem::is_regular_file(Path(segment.file), error)) {
      Unrepaired(segment.problem);  // it may be whole: what forbids to read it must go
      return OkStatus();
    }
    return SetAside(segment, segment.problem);
  }
  if (segment.bytes > kToolFileBytesMax) {
    Unrepaired(fmt::format("{} has {} bytes, more than these tools read ({}): it was left as it is",
                           segment.file, segment.bytes, kToolFileBytesMax));
    return OkStatus();
  }
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<ReadOnlyFile> file,
                      ReadOnlyFile::Open(Path(segment.file)));
  int64_t unreadable = 0;
  FB_ASSIGN_OR_RETURN(const std::string bytes, file->ReadRange(0, file->bytes(), &unreadable));
  const SegmentScan scan = ScanSegment(bytes, segment.number);
  const std::string index = CheckIndex(*file, bytes, segment.number, scan);
  const bool sealed = ReadIndex(*file, segment.number).has_value();

  std::vector<Wound> wounds;
  std::optional<Wound> torn;
  for (const DamagedRange& range : scan.damaged) {
    Wound wound{.offset = range.offset, .bytes = range.bytes, .lost = range.lost};
    wound.what = fmt::format("{} damaged record{} become{} padding", range.records,
                             range.records == 1 ? "" : "s or more", range.records == 1 ? "s" : "");
    (range.torn_tail ? torn.emplace() : wounds.emplace_back()) = std::move(wound);
  }
  for (const ScannedRecord& record : scan.records) {
    const std::string wrong = CheckRecord(record);
    if (wrong.empty()) continue;
    Wound wound{.offset = record.offset,
                .bytes = static_cast<size_t>(RecordBytes(record.header.payload_bytes)),
                .what = "a record whose content is wrong becomes padding: " + wrong};
    if (record.header.type == RecordType::kTrajectory) wound.lost.push_back(record.header.id());
    wounds.push_back(std::move(wound));
  }
  if (wounds.empty() && index.empty() && segment.problem.empty()) return OkStatus();

  // What is cut off behind the last whole record is only space when the segment stays open.
  if (torn) {
    torn->what = "what follows the last whole record is cleared";
    wounds.push_back(*torn);
  }
  int64_t capacity = segment.bytes;
  const Result<SegmentHeader> header =
      ParseSegmentHeader(std::string_view(bytes).substr(0, kBlockBytes));
  if (header.ok() && !sealed) capacity = std::max(capacity, header->capacity);
  if (capacity > kToolFileBytesMax) {
    Unrepaired(fmt::format("{} claims {} bytes: it was left as it is", segment.file, capacity));
    return OkStatus();
  }
  const Result<std::string> mended =
      Rewrite(segment, bytes, scan, wounds, capacity, sealed || !index.empty() || !header.ok());
  if (!mended.ok()) {
    Unrepaired(mended.status().message());
    return OkStatus();
  }
  for (Wound& wound : wounds) {
    FB_ASSIGN_OR_RETURN(
        const std::string kept,
        Keep(fmt::format("segment-{:010}-at-{}.damaged", segment.number, wound.offset),
             std::string_view(bytes).substr(wound.offset, wound.bytes)));
    report_.actions.push_back({.file = segment.file,
                               .segment = segment.number,
                               .offset = static_cast<int64_t>(wound.offset),
                               .bytes = static_cast<int64_t>(wound.bytes),
                               .lost = std::move(wound.lost),
                               .what = std::move(wound.what),
                               .kept_as = kept});
  }
  if (!header.ok()) {
    FB_ASSIGN_OR_RETURN(const std::string kept,
                        Keep(fmt::format("segment-{:010}-header.damaged", segment.number),
                             std::string_view(bytes).substr(0, kBlockBytes)));
    report_.actions.push_back({.file = segment.file,
                               .segment = segment.number,
                               .bytes = static_cast<int64_t>(kBlockBytes),
                               .what = "its header is written anew",
                               .kept_as = kept});
  } else if (segment.bytes < capacity) {
    report_.actions.push_back({.file = segment.file,
                               .segment = segment.number,
                               .offset = segment.bytes,
                               .bytes = capacity - segment.bytes,
                               .what = "it was cut: it gets its size back, without the records "
                                       "that lay there"});
  }
  if (!index.empty()) {
    const size_t begin = std::min(bytes.size(), std::max(scan.data_end, kDataBegin));
    const size_t first = bytes.find_first_not_of('\0', begin);
    const std::string_view old =
        first == std::string::npos ? std::string_view() : std::string_view(bytes).substr(first);
    FB_ASSIGN_OR_RETURN(const std::string kept,
                        Keep(fmt::format("segment-{:010}-index.damaged", segment.number), old));
    report_.actions.push_back({.file = segment.file,
                               .segment = segment.number,
                               .offset = static_cast<int64_t>(bytes.size() - old.size()),
                               .bytes = static_cast<int64_t>(old.size()),
                               .what = index + "; the index is written anew",
                               .kept_as = kept});
  }
  return dry_run_ ? OkStatus() : WriteFileAtomic(Path(segment.file), *mended);
}

Status Repairer::MendState(bool log_is_whole) {
  int whole = 0;
  std::vector<std::pair<std::string, std::string>> damaged;  // name, bytes
  for (const char* name : kStateNames) {
    const Result<std::string> bytes = ReadFile(Path(name), static_cast<size_t>(kToolFileBytesMax));
    if (bytes.status().code() == StatusCode::kNotFound) continue;
    FB_RETURN_IF_ERROR(bytes.status());
    if (bytes->find_first_not_of('\0') == std::string::npos) continue;
    const Result<State> state = ParseState(*bytes);
    if (state.ok() && Table::DecodeSnapshot(state->table).ok()) {
      ++whole;
    } else {
      damaged.emplace_back(name, *bytes);
    }
  }
  if (damaged.empty()) return OkStatus();
  if (whole == 0 && !log_is_whole) {
    // Built from what is left of the log, it could call something pending that was trained on.
    Unrepaired(fmt::format(
        "no state file of '{}' can be read, and the first records of the log were recycled: what "
        "was trained on can only be told from the records that are there, and so will the next "
        "start. If that is not good enough, restore the folder from a copy, or export what is "
        "there "
        "(forebay buffer export) and begin with a new one",
        folder_));
    return OkStatus();
  }
  for (const auto& [name, bytes] : damaged) {
    FB_ASSIGN_OR_RETURN(const std::string kept, Keep(name + ".damaged", bytes));
    report_.actions.push_back({.file = name,
                               .bytes = static_cast<int64_t>(bytes.size()),
                               .what = whole > 0
                                           ? "damaged; another state file is whole: it is moved"
                                           : "damaged; the log has every record: it is moved",
                               .kept_as = kept});
    if (dry_run_) continue;
    std::error_code error;
    std::filesystem::remove(Path(name), error);
    if (error) return ErrnoStatus("cannot remove '" + Path(name) + "'", error.value());
    FB_RETURN_IF_ERROR(SyncFolder(folder_));
  }
  return OkStatus();
}

}  // namespace

Result<RepairReport> RepairLog(const std::string& folder, bool dry_run) {
  // Looked at first, so that no lock file is made in a folder that is no buffer.
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, LogReader::Open(folder));
  const std::unique_ptr<FileSystem> files = MakeFileSystem();
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<FolderLock> lock, files->Lock(reader->folder()));
  FB_RETURN_IF_ERROR(reader->Refresh());
  for (const SegmentInfo& segment : reader->segments()) {
    if (segment.foreign) return FailedPrecondition(segment.file + ": " + segment.problem);
  }
  Repairer repairer(reader->folder(), dry_run);
  FB_RETURN_IF_ERROR(repairer.Run(reader->segments()));
  return std::move(repairer).Take();
}

}  // namespace forebay::buffer
