#include "forebay/buffer/core/recover.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "forebay/buffer/core/mirror.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// Garbage that a power loss can leave of a first segment whose opening was being written.
constexpr int64_t kGarbageOfAStart = 4096;
constexpr size_t kNotesMax = 200;

struct Found {  // a record, without a trajectory's payload
  RecordHeader header;
  std::string payload;
  TrajectoryId id;          // of a trajectory
  int64_t file_offset = 0;  // of its payload
};

class Recoverer {
 public:
  Recoverer(FileSystem& files, const BufferOptions& options, int64_t committed_batch)
      : files_(files), options_(options), committed_batch_(committed_batch) {}

  Result<Recovered> Run() {
    FB_RETURN_IF_ERROR(ReadSegments());
    DropRefused();
    FB_RETURN_IF_ERROR(CheckReadable());
    FB_ASSIGN_OR_RETURN(Table table, BuildState());
    RestoreCommits(table);
    LoadContent(table);
    EndAttempts(table);
    CheckReplays(table);
    table.MarkReplays();
    return Finish(std::move(table));
  }

 private:
  void Note(std::string text) {
    if (report_.notes.size() < kNotesMax) report_.notes.push_back(std::move(text));
  }
  std::string Path(uint32_t segment) const { return options_.folder + "/" + SegmentName(segment); }

  Status ReadSegments();
  Status ReadSegment(uint32_t number, bool last);
  void Quarantine(uint32_t number, const DamagedRange& range, std::string_view bytes);
  void DropRefused();
  Status CheckReadable();
  Result<Table> BuildState();
  void RestoreCommits(Table& table);
  void LoadContent(Table& table);
  void EndAttempts(Table& table);
  void CheckReplays(Table& table);
  Recovered Finish(Table table);
  void GiveUpTrajectory(Table& table, const TrajectoryId& id);
  void UnleaseFrom(Table& table, int64_t sequence, const std::string& why);

  FileSystem& files_;
  const BufferOptions& options_;
  const int64_t committed_batch_;
  Recovery report_;
  std::map<int64_t, Found> records_;          // by sequence
  std::map<uint32_t, Opening> openings_;      // by segment
  std::map<int64_t, int64_t> trajectory_at_;  // id -> sequence of its record
  std::set<int64_t> consumed_;     // batches that could not be leased again, but are trained
  std::set<int64_t> damaged_ids_;  // trajectories whose record is damaged
  std::map<uint32_t, int64_t> segments_;
  uint32_t next_segment_ = 1;
  int64_t garbage_bytes_ = 0;
  bool all_kept_ = true;  // the damaged bytes are in quarantine
};

Status Recoverer::ReadSegments() {
  FB_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(options_.folder));
  std::vector<uint32_t> numbers;
  for (const std::string& name : names) {
    if (const auto number = ParseSegmentName(name)) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  for (const uint32_t number : numbers) {
    FB_RETURN_IF_ERROR(ReadSegment(number, number == numbers.back()));
    next_segment_ = number + 1;
  }
  return OkStatus();
}

Status Recoverer::ReadSegment(uint32_t number, bool last) {
  const Result<std::string> bytes = files_.Read(Path(number));
  if (!bytes.ok()) {
    // Its trajectories count as quarantined; the file stays for a person to look at.
    Note(fmt::format("{}: {}", SegmentName(number), bytes.status().message()));
    garbage_bytes_ += kGarbageOfAStart + 1;
    segments_[number] = 0;
    return OkStatus();
  }
  const SegmentScan scan = ScanSegment(*bytes, number);
  if (options_.durability == Durability::kSync) {
    // What this process goes on from must not vanish with the power. A process that was killed may
    // have left records in the page cache; after a failed flush they look clean there and are not
    // on the device, so the last segment is written again.
    FB_RETURN_IF_ERROR(
        last ? files_.Rewrite(Path(number), std::string_view(*bytes).substr(0, scan.valid_end))
             : files_.SyncPath(Path(number)));
  }
  for (const ScannedRecord& scanned : scan.records) {
    Found found{.header = scanned.header};
    if (found.header.type == RecordType::kTrajectory) {
      const std::optional<TrajectoryId> id = PeekId(scanned.payload);
      if (!id) continue;
      found.id = *id;
      found.file_offset = static_cast<int64_t>(scanned.offset + kRecordAlign);
    } else {
      found.payload = scanned.payload;
    }
    if (found.header.type == RecordType::kOpening) {
      FB_ASSIGN_OR_RETURN(openings_[number], ParseOpening(scanned.payload));
      if (openings_[number].group_size != options_.group_size) {
        return FailedPrecondition(fmt::format(
            "the buffer in '{}' was written with group_size {}, now {} is asked for: use {}, or "
            "another run folder",
            options_.folder, openings_[number].group_size, options_.group_size,
            openings_[number].group_size));
      }
    }
    records_.insert_or_assign(found.header.sequence, std::move(found));
  }
  for (const DamagedRange& range : scan.damaged) Quarantine(number, range, *bytes);
  segments_[number] = static_cast<int64_t>(bytes->size());
  if (last && all_kept_ && scan.valid_end < bytes->size()) {
    // Space that was taken ahead, and what a crash cut (kept in quarantine).
    if (files_.Truncate(Path(number), static_cast<int64_t>(scan.valid_end)).ok()) {
      segments_[number] = static_cast<int64_t>(scan.valid_end);
    }
  }
  return OkStatus();
}

void Recoverer::Quarantine(uint32_t number, const DamagedRange& range, std::string_view bytes) {
  const auto size = static_cast<int64_t>(range.bytes);
  for (const TrajectoryId& id : range.lost) damaged_ids_.insert(id.trajectory_id);
  garbage_bytes_ += size;
  const std::string folder = options_.folder + "/quarantine";
  const std::string_view damaged = bytes.substr(range.offset, range.bytes);
  std::string path;
  for (int copy = 1;; ++copy) {  // the same place may be damaged twice
    path =
        fmt::format("{}/segment-{:010}-at-{}{}{}", folder, number, range.offset,
                    range.torn_tail ? ".torn" : ".damaged", copy == 1 ? "" : std::to_string(copy));
    const Result<std::string> known = files_.Read(path);
    if (!known.ok()) break;
    if (*known == damaged) return;  // an earlier recovery reported it
  }
  if (range.torn_tail) {
    report_.torn_tail_bytes += size;
    Note(fmt::format("{}: {} bytes at {} were being written when the process ended",
                     SegmentName(number), range.bytes, range.offset));
  } else {
    report_.quarantined_records += range.records;
    report_.quarantined_bytes += size;
    Note(fmt::format("{}: {} bytes at {} are damaged and were put in quarantine",
                     SegmentName(number), range.bytes, range.offset));
  }
  Status kept = files_.MakeFolder(folder);
  if (kept.ok()) {
    Result<std::unique_ptr<LogFile>> file = files_.Create(path, size);
    kept = file.ok() ? (*file)->Write(0, damaged) : file.status();
    if (kept.ok()) kept = (*file)->Sync();
    if (kept.ok()) kept = files_.SyncFolder(folder);
  }
  if (kept.ok()) return;
  all_kept_ = false;
  Note(fmt::format("the damaged bytes could not be copied: {}", kept.message()));
}

// A write that was refused may still lie whole in its segment; the next segment's opening says what
// was good.
void Recoverer::DropRefused() {
  for (auto it = records_.begin(); it != records_.end();) {
    const auto next = openings_.upper_bound(it->second.header.segment);
    if (next != openings_.end() && it->first > next->second.previous_sequence) {
      it = records_.erase(it);
      continue;
    }
    if (it->second.header.type == RecordType::kTrajectory) {
      trajectory_at_[it->second.id.trajectory_id] = it->first;
    }
    ++it;
  }
  report_.records = static_cast<int64_t>(records_.size());
}

Status Recoverer::CheckReadable() {
  if (records_.empty() && garbage_bytes_ > kGarbageOfAStart) {
    return DataLoss(
        fmt::format("none of the {} segments in '{}' has a record that can be read: restore the "
                    "folder, or move it "
                    "away to begin anew",
                    segments_.size(), options_.folder));
  }
  return OkStatus();
}

// The last snapshot, and the records after it.
Result<Table> Recoverer::BuildState() {
  Table base(options_.group_size);
  int64_t from = 0;
  for (auto it = records_.rbegin(); it != records_.rend(); ++it) {
    if (it->second.header.type != RecordType::kSnapshot) continue;
    Result<Table> snapshot = Table::DecodeSnapshot(it->second.payload);
    if (snapshot.ok() && snapshot->group_size() == options_.group_size) {
      base = std::move(*snapshot);
      from = it->first;
      break;
    }
    Note(fmt::format("record {}: {}", it->first, snapshot.status().message()));
  }
  if (from == 0 && !records_.empty()) {
    Note("no snapshot of the table can be read: counts start from the records that are there");
  }
  TableMirror mirror(std::move(base));
  for (auto it = records_.upper_bound(from); it != records_.end(); ++it) {
    const Found& found = it->second;
    if (found.header.type == RecordType::kTrajectory) {
      mirror.ApplyTrajectory(found.header, found.id);
    } else {
      mirror.Apply(found.header, found.payload);
    }
  }
  // A batch that the restored weights were trained on stays trained, even if a member's record is
  // damaged.
  for (const auto& [sequence, lease] : mirror.unapplied_leases()) {
    if (sequence > committed_batch_ || mirror.Consume(lease.trajectory_ids) == 0) continue;
    consumed_.insert(sequence);
    Note(fmt::format("batch {} is in the checkpoint: its trajectories count as trained", sequence));
  }
  for (std::string& note : mirror.TakeNotes()) Note(std::move(note));
  return std::move(mirror.table());
}

// Makes "committed" mean what the caller's weights say, not what the log says.
void Recoverer::RestoreCommits(Table& table) {
  if (committed_batch_ >= table.next_batch()) {
    if (consumed_.count(committed_batch_) == 0) {
      Note(fmt::format("the checkpoint holds batches up to {}, the log knows leases up to {}",
                       committed_batch_, table.next_batch() - 1));
    }
    table.Commit(table.next_batch() - 1).ok();
    table.SetCommitted(committed_batch_);
    table.SetNextBatch(committed_batch_ + 1);
    return;
  }
  if (committed_batch_ >= table.committed_batch()) {
    for (int64_t batch = table.committed_batch() + 1; batch <= committed_batch_; ++batch) {
      if (table.FindBatch(batch) != nullptr || consumed_.count(batch) > 0) continue;
      Note(fmt::format(
          "the lease of batch {}, which the checkpoint holds, is not in the log: its trajectories "
          "may be trained on again",
          batch));
    }
    table.Commit(committed_batch_).ok();
    return;
  }
  // An older checkpoint was restored. What the later ones trained on is pending again, as far as
  // its segments were not recycled.
  const int64_t logged = table.committed_batch();
  std::map<int64_t, LeaseRecord> leases;
  for (const auto& [sequence, found] : records_) {
    if (found.header.type != RecordType::kLease) continue;
    const auto lease = ParseLease(found.payload);
    if (!lease.ok() || lease->sequence <= committed_batch_ || lease->sequence > logged) continue;
    leases[lease->sequence] = *lease;
  }
  int64_t back = 0, gone = 0;
  for (const auto& [sequence, lease] : leases) {
    std::map<int64_t, std::vector<std::pair<TrajectoryId, PendingInfo>>> groups;
    for (const int64_t id : lease.trajectory_ids) {
      const auto at = trajectory_at_.find(id);
      if (at == trajectory_at_.end()) continue;
      const Found& found = records_.at(at->second);
      groups[found.id.group_id].emplace_back(
          found.id,
          PendingInfo{.min_version = found.header.min_version, .segment = found.header.segment});
    }
    int64_t whole = 0;
    for (const auto& [group_id, members] : groups) {
      if (table.Uncommit(members)) whole += options_.group_size;
    }
    back += whole;
    gone += static_cast<int64_t>(lease.trajectory_ids.size()) - whole;
  }
  Note(fmt::format(
      "the checkpoint holds batches up to {}, the log had committed {}: {} trajectories of the "
      "later batches are pending again, {} are no longer in the log",
      committed_batch_, logged, back, gone));
  // The leases after them stay whole only when these can be replayed too.
  table.SetCommitted(committed_batch_);
  int64_t expected = committed_batch_ + 1;
  const int64_t next = table.next_batch();
  std::vector<LeaseRecord> later;
  for (int64_t sequence = logged + 1; sequence < next; ++sequence) {
    if (const BatchState* batch = table.FindBatch(sequence)) {
      LeaseRecord lease{.sequence = sequence, .learner_version = batch->learner_version};
      for (const TrajectoryId& id : table.Ids(*batch))
        lease.trajectory_ids.push_back(id.trajectory_id);
      later.push_back(std::move(lease));
    }
  }
  table.UnleaseFrom(committed_batch_ + 1);
  for (; expected <= logged; ++expected) {
    const auto lease = leases.find(expected);
    if (lease == leases.end() ||
        !table.ReplayLease(expected, lease->second.learner_version, lease->second.trajectory_ids)
             .ok()) {
      Note(fmt::format("batch {} cannot be replayed: training goes on with new batches", expected));
      return;
    }
  }
  for (const LeaseRecord& lease : later) {
    table.ReplayLease(lease.sequence, lease.learner_version, lease.trajectory_ids).ok();
  }
}

void Recoverer::UnleaseFrom(Table& table, int64_t sequence, const std::string& why) {
  if (sequence >= table.next_batch()) return;
  Note(fmt::format("{}: batches from {} on are not replayed, their trajectories are pending again",
                   why, sequence));
  table.UnleaseFrom(sequence);
}

void Recoverer::GiveUpTrajectory(Table& table, const TrajectoryId& id) {
  const int64_t batch = table.BatchOf(id);
  if (batch != 0) {
    UnleaseFrom(table, batch, fmt::format("batch {} lost trajectory {}", batch, id.trajectory_id));
  }
  table.Reject(id, RejectReason::kQuarantined).ok();
  Note(fmt::format("trajectory {} (group {}, member {}) cannot be read: it must be sampled again",
                   id.trajectory_id, id.group_id, id.member));
}

void Recoverer::LoadContent(Table& table) {
  std::map<uint32_t, std::vector<TrajectoryId>> by_segment;
  std::vector<TrajectoryId> lost;
  for (const TrajectoryId& id : table.PendingIds()) {
    const auto at = trajectory_at_.find(id.trajectory_id);
    if (at == trajectory_at_.end()) {
      lost.push_back(id);
    } else {
      by_segment[records_.at(at->second).header.segment].push_back(id);
    }
  }
  for (const auto& [segment, ids] : by_segment) {
    const Result<std::string> bytes = files_.Read(Path(segment));
    for (const TrajectoryId& id : ids) {
      const Found& found = records_.at(trajectory_at_.at(id.trajectory_id));
      const auto begin = static_cast<size_t>(found.file_offset);
      if (!bytes.ok() || begin + found.header.payload_bytes > bytes->size()) {
        lost.push_back(id);
        continue;
      }
      Result<Trajectory> t =
          Decode(std::string_view(*bytes).substr(begin, found.header.payload_bytes));
      if (!t.ok() || t->id != id) {
        lost.push_back(id);
        continue;
      }
      PendingInfo info{.min_version = found.header.min_version, .memory_bytes = MemoryBytes(*t)};
      info.trajectory = std::make_shared<const Trajectory>(std::move(*t));
      if (!table.Fill(id.trajectory_id, std::move(info))) lost.push_back(id);
    }
  }
  for (const TrajectoryId& id : lost) GiveUpTrajectory(table, id);
}

// Nobody works on these any more.
void Recoverer::EndAttempts(Table& table) {
  for (const TrajectoryId& id : table.InFlightIds()) {
    const bool damaged = damaged_ids_.count(id.trajectory_id) > 0;
    table.Reject(id, damaged ? RejectReason::kQuarantined : RejectReason::kLostInCrash).ok();
  }
}

// Replays must follow the committed batch without a gap: each is one optimizer step.
void Recoverer::CheckReplays(Table& table) {
  for (int64_t sequence = committed_batch_ + 1; sequence < table.next_batch(); ++sequence) {
    if (table.FindBatch(sequence) == nullptr) {
      UnleaseFrom(table, sequence,
                  fmt::format("the lease of batch {} is not in the log", sequence));
      table.SetNextBatch(sequence);
      return;
    }
    ++report_.replay_batches;
  }
}

Recovered Recoverer::Finish(Table table) {
  report_.next_trajectory_id = std::max<int64_t>(1, table.next_trajectory_id());
  if (!damaged_ids_.empty()) {
    report_.next_trajectory_id = std::max(report_.next_trajectory_id, *damaged_ids_.rbegin() + 1);
  }
  report_.next_group_id = table.next_group_id();
  report_.missing = table.Missing();
  const int64_t last_sequence = records_.empty() ? 0 : records_.rbegin()->first;
  return {.table = std::move(table),
          .report = std::move(report_),
          .last_sequence = last_sequence,
          .next_segment = next_segment_,
          .segments = std::move(segments_)};
}

}  // namespace

Result<Recovered> Recover(FileSystem& files, const BufferOptions& options,
                          int64_t committed_batch) {
  return Recoverer(files, options, committed_batch).Run();
}

int64_t MemoryBytes(const Trajectory& t) {
  size_t bytes = sizeof(Trajectory) + t.environment.size();
  bytes += t.tokens.size() * (sizeof(int32_t) + sizeof(uint8_t) + sizeof(float));
  bytes += t.versions.size() * sizeof(VersionRun);
  for (const Turn& turn : t.turns) bytes += sizeof(Turn) + turn.tool.size();
  for (const auto& [name, value] : t.rewards) bytes += 64 + name.size();
  return static_cast<int64_t>(bytes);
}

}  // namespace forebay::buffer
