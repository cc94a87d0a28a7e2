#include "forebay/buffer/core/recover.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/quarantine.h"
#include "forebay/buffer/core/replay.h"
#include "forebay/buffer/core/restore.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// Pending payloads in sealed segments are checked now up to so many bytes, and the rest by whoever
// reads them: a start must not take as long as reading everything.
constexpr int64_t kVerifyBytesMax = int64_t{256} << 20;

// How many records ahead the table learns of what comes.
constexpr size_t kFar = 32, kNear = 16;
// How many segments ahead the disk does.
constexpr size_t kSegmentsAhead = 8;

// No record of a trajectory is smaller.
constexpr int64_t kRecordBytesMin = RecordBytes(1);

struct SegmentFile {
  uint32_t file_id = 0;
  SegmentHeader header;
  // While it is read: there may be more than a process can hold open.
  std::unique_ptr<LogFile> file;
};

class Recoverer {
 public:
  Recoverer(FileSystem& files, StateFiles& states, const BufferOptions& options,
            int64_t committed_batch)
      : files_(files),
        states_(states),
        options_(options),
        committed_batch_(committed_batch),
        quarantine_(files, options.folder + "/quarantine", &report_) {}

  Result<Recovered> Run() {
    FB_RETURN_IF_ERROR(OpenSegments());
    FB_RETURN_IF_ERROR(ReadState());
    auto ahead = segments_.begin();
    for (size_t n = 0; n < kSegmentsAhead; ++n) WillReadSegment(ahead);
    for (auto& [number, segment] : segments_) {
      WillReadSegment(ahead);
      FB_RETURN_IF_ERROR(ReadSegment(number, segment));
    }
    FB_RETURN_IF_ERROR(CheckReadable());
    return Finish();
  }

 private:
  Status OpenSegments();
  Status OpenSegment(const std::string& name, uint32_t file_id);
  Status WrongGroupSize(int32_t found) const;
  Status OpenFile(uint32_t number, SegmentFile& segment);
  Status ReadState();
  void WillReadSegment(std::map<uint32_t, SegmentFile>::iterator& next);
  Status ReadSegment(uint32_t number, SegmentFile& segment);
  Status DropEmpty(SegmentFile& segment);
  void ApplyRecords(uint32_t number, SegmentFile& segment, const SegmentScan& scan);
  Status SealSegment(uint32_t number, SegmentFile& segment, const SegmentScan& scan);
  void NoteGap(int64_t from, int64_t to);
  Status CheckReadable();
  void VerifyPayloads();
  bool Readable(const Placed& placed, bool decode);
  Result<Recovered> Finish();
  void Note(std::string note) { report_.notes.push_back(std::move(note)); }

  FileSystem& files_;
  StateFiles& states_;
  const BufferOptions& options_;
  const int64_t committed_batch_;
  Recovery report_;
  Quarantine quarantine_;

  std::map<uint32_t, SegmentFile> segments_;  // by number
  uint32_t open_segment_ = 0;                 // whose file is open
  int64_t segment_bytes_ = 0;
  std::vector<KnownSegment> known_;
  std::set<uint32_t> checked_;  // whose payloads were looked at by the scan
  std::set<int64_t> damaged_ids_;
  int64_t unreadable_ = 0, records_ = 0;
  Status no_resource_;  // to open what has to be checked: nothing is decided then
  uint32_t next_file_id_ = 1;
  int64_t state_sequence_ = 0, last_sequence_ = 0;
  std::optional<Replay> replay_;
};

Status Recoverer::WrongGroupSize(int32_t found) const {
  return FailedPrecondition(fmt::format(
      "the buffer in '{}' was written with group_size {}, now {} is asked for: use {}, or another "
      "run folder",
      options_.folder, found, options_.group_size, found));
}

Status Recoverer::OpenSegments() {
  FB_ASSIGN_OR_RETURN(std::vector<std::string> names, files_.List(options_.folder));
  std::ranges::sort(names);  // of two files of one segment the older one is read
  for (const std::string& name : names) {
    const std::optional<uint32_t> file_id = ParseSegmentName(name);
    if (!file_id) continue;
    next_file_id_ = std::max(next_file_id_, *file_id + 1);
    FB_RETURN_IF_ERROR(OpenSegment(name, *file_id));
  }
  return OkStatus();
}

Status Recoverer::OpenSegment(const std::string& name, uint32_t file_id) {
  const std::string path = options_.folder + "/" + name;
  Result<std::unique_ptr<LogFile>> file = files_.Open(path);
  std::string block(kDataBegin + kRecordAlign, '\0');
  Status read = file.status();
  if (read.ok()) {
    block.resize(static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(block.size()), (*file)->bytes())));
    read = (*file)->ReadAt(0, block.data(), block.size());
  }
  // That says nothing of the file: as it is, everything in it would count as lost.
  if (read.code() == StatusCode::kResourceExhausted) return read.WithContext(name);
  if (!read.ok()) {
    // Its trajectories count as quarantined; the file stays for a person to look at.
    Note(fmt::format("{}: {}", name, read.message()));
    ++unreadable_;
    return OkStatus();
  }
  Result<SegmentHeader> header = ParseSegmentHeader(block);
  if (header.status().code() == StatusCode::kFailedPrecondition) {
    return header.status().WithContext(name);
  }
  if (!header.ok() && block.find_first_not_of('\0') == std::string::npos) {
    // A spare that was never used.
    return files_.Remove(path);
  }
  if (!header.ok()) {
    // Its records name it too.
    std::string bytes(static_cast<size_t>((*file)->bytes()), '\0');
    FB_RETURN_IF_ERROR((*file)->ReadAt(0, bytes.data(), bytes.size()));
    const std::optional<RecordHeader> newest = NewestHeader(bytes);
    Note(fmt::format("{}: {}", name, header.status().message()));
    if (!newest && bytes.size() > kDataBegin &&
        bytes.find_first_not_of('\0', kDataBegin) == std::string::npos) {
      Note(fmt::format("{} never had a record: nothing is lost", name));
      quarantine_.Put(0, {.bytes = kDataBegin, .records = 0},
                      std::string_view(bytes).substr(0, kDataBegin));
      return files_.Remove(path);
    }
    if (!newest) {
      ++unreadable_;
      return OkStatus();
    }
    header = SegmentHeader{.number = newest->segment,
                           .capacity = (*file)->bytes(),
                           .first_sequence = 0,
                           .group_size = options_.group_size};
  }
  if (header->group_size != options_.group_size) return WrongGroupSize(header->group_size);
  SegmentFile segment{.file_id = file_id, .header = *header};
  const auto [at, fresh] = segments_.try_emplace(header->number, std::move(segment));
  if (!fresh) {
    Note(fmt::format("{} is segment {}, as {} is: it was passed over", name, header->number,
                     SegmentName(at->second.file_id)));
    return OkStatus();
  }
  segment_bytes_ += (*file)->bytes();
  WillReadTrailer(**file);
  return OkStatus();
}

// Opens its file, and closes the one that was open.
Status Recoverer::OpenFile(uint32_t number, SegmentFile& segment) {
  if (segment.file != nullptr) return OkStatus();
  const auto before = segments_.find(open_segment_);
  if (before != segments_.end()) before->second.file.reset();
  open_segment_ = number;
  FB_ASSIGN_OR_RETURN(segment.file,
                      files_.Open(options_.folder + "/" + SegmentName(segment.file_id)));
  return OkStatus();
}

Status Recoverer::ReadState() {
  Result<State> state = states_.Read();
  if (state.status().code() == StatusCode::kResourceExhausted) return state.status();
  Result<Table> table = state.ok() ? Table::DecodeSnapshot(state->table) : state.status();
  if (table.ok() && table->group_size() != options_.group_size) {
    return WrongGroupSize(table->group_size());
  }
  if (!table.ok()) {
    const bool fresh = state.status().code() == StatusCode::kNotFound && segments_.empty();
    if (!fresh && !(segments_.empty() && unreadable_ == 0)) {
      Note(fmt::format("{}: counts start from the records that are there",
                       table.status().message()));
    }
    replay_.emplace(Table(options_.group_size), 0, 0);
    return OkStatus();
  }
  state_sequence_ = last_sequence_ = state->sequence;
  table->ReserveRestore(segment_bytes_ / kRecordBytesMin);
  replay_.emplace(std::move(*table), state->sequence, state->replay_from);
  return OkStatus();
}

void Recoverer::NoteGap(int64_t from, int64_t to) {
  if (from <= state_sequence_ || from >= to) return;
  Note(fmt::format("records {} to {} are not in the log", from, to - 1));
}

// The disk begins to read its index. Moves on.
void Recoverer::WillReadSegment(std::map<uint32_t, SegmentFile>::iterator& next) {
  if (next == segments_.end()) return;
  Result<std::unique_ptr<LogFile>> file =
      files_.Open(options_.folder + "/" + SegmentName(next->second.file_id));
  if (file.ok()) WillReadIndex(**file, next->first);
  ++next;
}

// Starts that end before their first record must not fill the disk.
Status Recoverer::DropEmpty(SegmentFile& segment) {
  segment.file.reset();
  return files_.Remove(options_.folder + "/" + SegmentName(segment.file_id));
}

Status Recoverer::ReadSegment(uint32_t number, SegmentFile& segment) {
  KnownSegment known{
      .number = number, .file_id = segment.file_id, .bytes = segment.header.capacity};
  Status read = OpenFile(number, segment);
  if (read.code() == StatusCode::kResourceExhausted) return read;
  std::optional<SegmentScan> scan;
  if (read.ok()) {
    known.bytes = segment.file->bytes();
    scan = ReadIndex(*segment.file, number);
  }
  if (!scan) {
    std::string bytes(static_cast<size_t>(known.bytes), '\0');
    if (read.ok()) read = segment.file->ReadAt(0, bytes.data(), bytes.size());
    if (!read.ok()) {
      // As above: its file stays.
      Note(fmt::format("segment {}: {}", number, read.message()));
      ++unreadable_;
      return OkStatus();
    }
    scan = ScanSegment(bytes, number);
    checked_.insert(number);
    if (scan->records.empty() && scan->damaged.empty()) return DropEmpty(segment);
    if (scan->unfinished > 0) {
      Note(fmt::format("segment {}: {} trajectories were being written when the process ended",
                       number, scan->unfinished));
    }
    for (const DamagedRange& range : scan->damaged) {
      for (const TrajectoryId& id : range.lost) damaged_ids_.insert(id.trajectory_id);
      quarantine_.Put(number, range, std::string_view(bytes).substr(range.offset, range.bytes));
    }
    if (!scan->records.empty()) {
      NoteGap(last_sequence_ + 1, scan->records.front().header.sequence);
    }
    ApplyRecords(number, segment, *scan);
    FB_RETURN_IF_ERROR(SealSegment(number, segment, *scan));
    known.bytes = segment.file->bytes();
  } else {
    if (scan->records.empty()) return DropEmpty(segment);
    NoteGap(last_sequence_ + 1, scan->records.front().header.sequence);
    ApplyRecords(number, segment, *scan);
  }
  known_.push_back(known);
  return OkStatus();
}

void Recoverer::ApplyRecords(uint32_t number, SegmentFile& segment, const SegmentScan& scan) {
  const std::vector<ScannedRecord>& records = scan.records;
  std::string read;
  for (size_t i = 0; i < records.size(); ++i) {
    if (i + kFar < records.size()) replay_->Ahead(records[i + kFar].header, Table::Ahead::kFar);
    if (i + kNear < records.size()) replay_->Ahead(records[i + kNear].header, Table::Ahead::kNear);
    const ScannedRecord& record = records[i];
    ++records_;
    last_sequence_ = std::max(last_sequence_, record.header.sequence);
    std::string_view payload = record.payload;
    if (scan.sealed && replay_->NeedsPayload(record.header)) {
      if (!ReadPayload(*segment.file, record.header, static_cast<int64_t>(record.offset), &read)
               .ok()) {
        quarantine_.Put(
            number, {.offset = record.offset, .bytes = record.header.payload_bytes + kRecordAlign},
            read);
        continue;
      }
      payload = read;
    }
    replay_->Apply(record.header, static_cast<uint32_t>(record.offset / kRecordAlign), payload);
  }
}

// Gives a segment that a crash left open the index that it lacks. Where records were damaged, the
// index has pads.
Status Recoverer::SealSegment(uint32_t number, SegmentFile& segment, const SegmentScan& scan) {
  std::vector<RecordHeader> headers;
  int64_t at = kDataBegin;
  int64_t sequence = segment.header.first_sequence;
  const auto pad_to = [&](int64_t offset) {
    if (offset <= at) return;
    headers.push_back(PadHeader(offset - at, sequence, number));
    at = offset;
  };
  for (const ScannedRecord& record : scan.records) {
    pad_to(static_cast<int64_t>(record.offset));
    headers.push_back(record.header);
    sequence = record.header.sequence;
    at += RecordBytes(record.header.payload_bytes);
  }
  const int64_t index_bytes = IndexBytes(static_cast<int64_t>(headers.size()));
  int64_t capacity = segment.file->bytes();
  if (capacity != WholeBlocks(capacity) || at > capacity - index_bytes) {
    // Something cut it, or the index of an interrupted life filled it to the end.
    capacity = WholeBlocks(at) + index_bytes;
  }
  if (capacity != segment.file->bytes()) {
    const std::string path = options_.folder + "/" + SegmentName(segment.file_id);
    FB_RETURN_IF_ERROR(files_.Truncate(path, capacity));
    FB_ASSIGN_OR_RETURN(segment.file, files_.Open(path));
  }
  Status sealed =
      segment.file->Write(capacity - index_bytes, EncodeIndex(number, headers, capacity));
  // A process that was killed may have left records that are not on the device yet.
  if (sealed.ok()) sealed = segment.file->Sync();
  // Without an index it is scanned again at the next start.
  if (!sealed.ok() && options_.durability == Durability::kSync) return sealed;
  return OkStatus();
}

Status Recoverer::CheckReadable() {
  if (records_ == 0 && unreadable_ > 0 && state_sequence_ == 0) {
    return DataLoss(
        fmt::format("none of the {} segments in '{}' has a record that can be read: restore the "
                    "folder, or move it away to begin anew",
                    unreadable_ + static_cast<int64_t>(segments_.size()), options_.folder));
  }
  return OkStatus();
}

// Whether the record of a pending trajectory is what it was.
bool Recoverer::Readable(const Placed& placed, bool decode) {
  const auto segment = segments_.find(placed.info.segment);
  if (segment == segments_.end()) return false;
  if (const Status opened = OpenFile(segment->first, segment->second); !opened.ok()) {
    if (opened.code() == StatusCode::kResourceExhausted) no_resource_ = opened;
    return false;
  }
  std::unique_ptr<char[]> buffer;
  const Result<std::string_view> payload =
      ReadTrajectory(*segment->second.file, placed.info.segment, placed.info.offset_64,
                     placed.info.payload_bytes, placed.id.trajectory_id, &buffer);
  bool readable = payload.ok();
  if (readable && decode) {
    const Result<Trajectory> t = Decode(*payload);
    readable = t.ok() && t->id == placed.id;
  }
  if (!readable && buffer != nullptr) {
    quarantine_.Put(placed.info.segment,
                    {.offset = placed.info.offset_64 * kRecordAlign,
                     .bytes = placed.info.payload_bytes + kRecordAlign},
                    {buffer.get(), placed.info.payload_bytes + kRecordAlign});
  }
  return readable;
}

void Recoverer::VerifyPayloads() {
  Table& table = replay_->table();
  std::vector<Placed> lost;
  // Replays first: they must be whole now.
  for (int64_t batch = committed_batch_ + 1; batch < table.next_batch(); ++batch) {
    const BatchState* state = table.FindBatch(batch);
    if (state == nullptr) continue;
    for (const Placed& placed : table.Members(state->groups)) {
      if (!Readable(placed, true)) lost.push_back(placed);
    }
  }
  int64_t budget = kVerifyBytesMax;
  if (table.pending_bytes() <= budget) {
    for (const TrajectoryId& id : table.PendingIds()) {
      const std::optional<PendingInfo> where = table.Where(id.trajectory_id);
      if (!where || table.BatchOf(id) != 0 || checked_.count(where->segment) > 0) continue;
      if (!Readable({.id = id, .info = *where}, false)) lost.push_back({.id = id, .info = *where});
    }
  }
  for (const Placed& placed : lost) GiveUpTrajectory(table, placed.id, report_);
}

Result<Recovered> Recoverer::Finish() {
  Table& table = replay_->table();
  if (const int64_t gone = replay_->FinishState(); gone > 0) {
    Note(fmt::format("{} pending trajectories are no longer in the log: they must be sampled again",
                     gone));
  }
  for (std::string& note : replay_->TakeNotes()) Note(std::move(note));
  // A batch that the restored weights were trained on stays trained, even if a member's record is
  // damaged.
  std::set<int64_t> consumed;
  for (const auto& [sequence, lease] : replay_->unapplied_leases()) {
    if (sequence > committed_batch_ || replay_->Consume(lease.trajectory_ids) == 0) continue;
    consumed.insert(sequence);
    Note(fmt::format("batch {} is in the checkpoint: its trajectories count as trained", sequence));
  }
  RestoreCommits(table, committed_batch_, consumed, report_);
  // Only now: what the checkpoint holds is not pending any more.
  for (const TrajectoryId& id : replay_->Unseen()) GiveUpTrajectory(table, id, report_);
  VerifyPayloads();
  FB_RETURN_IF_ERROR(no_resource_);
  EndAttempts(table, damaged_ids_, options_.implied_dispatch);
  table.MarkReplays();
  CheckReplays(table, committed_batch_, report_);
  report_.records = records_;
  report_.next_trajectory_id = std::max<int64_t>(1, table.next_trajectory_id());
  if (!damaged_ids_.empty()) {
    report_.next_trajectory_id = std::max(report_.next_trajectory_id, *damaged_ids_.rbegin() + 1);
  }
  report_.next_group_id = table.next_group_id();
  report_.missing = table.Missing();
  Recovered recovered(options_.group_size);
  recovered.table = std::move(table);
  recovered.report = std::move(report_);
  // One more than was seen: the state that follows is newer than any before it, whose decisions are
  // not in the log.
  recovered.last_sequence = last_sequence_ + 1;
  recovered.next_number = segments_.empty() ? 1 : segments_.rbegin()->first + 1;
  recovered.next_file_id = next_file_id_;
  recovered.segments = std::move(known_);
  return recovered;
}

// Above the serials of every process before: each acknowledged take is in a record, and no process
// has more takes that ended otherwise than kOtherTakes. So a late acknowledgement of one of theirs
// finds no take.
int64_t FirstTakeSerial(int64_t starts, int64_t last_sequence) {
  constexpr int64_t kOtherTakes = int64_t{1} << 24;
  constexpr int64_t kStartsMax = int64_t{1} << 18;  // then from the beginning
  return starts % kStartsMax * kOtherTakes + last_sequence;
}

}  // namespace

Result<Recovered> Recover(FileSystem& files, StateFiles& states, const BufferOptions& options,
                          int64_t committed_batch) {
  FB_ASSIGN_OR_RETURN(Recovered recovered,
                      Recoverer(files, states, options, committed_batch).Run());
  Table& table = recovered.table;
  const State state{.sequence = recovered.last_sequence,
                    .replay_from = recovered.last_sequence + 1,
                    .table = table.EncodeSnapshot()};
  // Twice: it is in no record, and the damage of one state must not undo it.
  for (int copy = 0; copy < 2; ++copy) FB_RETURN_IF_ERROR(states.Write(state));
  std::erase_if(recovered.segments, [&](const KnownSegment& known) {
    return !table.SegmentIsLive(known.number) &&
           files.Remove(options.folder + "/" + SegmentName(known.file_id)).ok();
  });
  table.SkipTakeSerials(FirstTakeSerial(states.starts(), recovered.last_sequence));
  return recovered;
}

}  // namespace forebay::buffer
