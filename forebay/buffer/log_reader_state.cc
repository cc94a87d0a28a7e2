// What the log adds up to: the table, what became of each trajectory, the content of a batch.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/replay.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/log_reader_file.h"
#include "forebay/buffer/log_reader_replayed.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// The newest of the state files; its table is not decoded yet.
Result<State> ReadStateFiles(const std::string& folder, std::string* problem) {
  Result<State> newest = NotFound("there is no state file");
  for (const char* name : kStateNames) {
    const Result<std::unique_ptr<ReadOnlyFile>> file = ReadOnlyFile::Open(folder + "/" + name);
    if (!file.ok()) continue;
    int64_t unreadable = 0;
    const Result<std::string> bytes = (*file)->ReadRange(0, (*file)->bytes(), &unreadable);
    if (!bytes.ok() || bytes->find_first_not_of('\0') == std::string::npos) continue;
    Result<State> state = ParseState(*bytes);
    if (!state.ok()) {
      *problem = fmt::format("{}: {}", name, state.status().message());
    } else if (!newest.ok() || newest->sequence < state->sequence) {
      newest = std::move(state);
    }
  }
  return newest;
}

}  // namespace

// As a start of the buffer does it, but that nobody works on what is in flight.
Result<std::unique_ptr<LogReader::Replayed>> LogReader::ReplayLog() {
  std::string problem;
  Result<State> state = ReadStateFiles(folder_, &problem);
  Result<Table> table = state.ok() ? Table::DecodeSnapshot(state->table) : state.status();
  if (!problem.empty()) Note(problem);
  if (!table.ok()) {
    // Without a state, the records say everything if all of them are there.
    const SegmentInfo* first = nullptr;
    for (const SegmentInfo& segment : segments_) {
      if (segment.number != 0 && first == nullptr) first = &segment;
    }
    if (first == nullptr || first->number != 1) {
      return DataLoss(
          fmt::format("the state of the buffer in '{}' cannot be read ({}), and its "
                      "first records are not there: what is left can be looked at with "
                      "`forebay buffer tail` and `export`",
                      folder_, problem.empty() ? table.status().message() : problem));
    }
    table = Table(std::max(1, first->group_size));
    state = State();
  }
  Replay replay(std::move(*table), state->sequence, state->replay_from);
  auto out = std::make_unique<Replayed>(state->sequence);
  ForEachScanned({.payloads = false}, [&](const ScannedRecord& record, uint32_t) {
    out->sequence = std::max(out->sequence, record.header.sequence);
    replay.Apply(record.header, static_cast<uint32_t>(record.offset / kRecordAlign),
                 record.payload);
    return true;
  });
  out->lost_unnamed = replay.FinishState();
  out->lost = replay.Unseen();
  for (std::string& note : replay.TakeNotes()) Note(std::move(note));
  out->table = std::move(replay.table());
  return out;
}

Result<LogState> LogReader::ReadState() {
  LogState out;
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<Replayed> replayed, ReplayLog());
  const Table* const table = &replayed->table;
  out.sequence = replayed->sequence;
  out.group_size = table->group_size();
  out.ledger = table->ledger();
  out.ready_groups = table->ready_groups();
  out.partial_groups = table->partial_groups();
  out.next_batch = table->next_batch();
  out.committed_batch = table->committed_batch();
  out.released_batch = table->released_batch();
  for (int64_t batch = out.released_batch + 1; batch < out.next_batch; ++batch) {
    const BatchState* state = table->FindBatch(batch);
    if (state == nullptr) continue;
    out.batches.push_back({.sequence = batch,
                           .learner_version = state->learner_version,
                           .groups = static_cast<int64_t>(state->groups.size()),
                           .committed = state->retained});
  }
  return out;
}

// The newest place of every trajectory, and of every lease.
Status LogReader::Locate() {
  if (located_) return OkStatus();
  places_.clear();
  fates_.clear();
  leases_.clear();
  LogFilter filter{.payloads = false};
  filter.events = {};
  filter.events[static_cast<size_t>(LogEvent::kTrajectory)] = true;
  filter.events[static_cast<size_t>(LogEvent::kLease)] = true;
  FB_RETURN_IF_ERROR(ForEach(filter, [&](const LogRecord& record) {
    const Place place{
        .trajectory_id = record.id.trajectory_id,
        .segment = record.segment,
        .offset_64 = static_cast<uint32_t>(record.offset / static_cast<int64_t>(kRecordAlign))};
    if (record.event == LogEvent::kLease) {
      leases_[record.batch] = place;
    } else {
      places_.push_back(place);
    }
    return true;
  }));
  // Of each trajectory the last: they came in log order.
  std::ranges::stable_sort(places_, {}, &Place::trajectory_id);
  size_t kept = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (i + 1 < places_.size() && places_[i + 1].trajectory_id == places_[i].trajectory_id)
      continue;
    places_[kept++] = places_[i];
  }
  places_.resize(kept);
  located_ = true;
  return OkStatus();
}

const LogReader::Place* LogReader::PlaceOf(int64_t trajectory_id) const {
  const auto at = std::ranges::lower_bound(places_, trajectory_id, {}, &Place::trajectory_id);
  return at == places_.end() || at->trajectory_id != trajectory_id ? nullptr : &*at;
}

Status LogReader::LoadFates() {
  FB_RETURN_IF_ERROR(Locate());
  fates_.assign(places_.size(), {});
  const auto fate_of = [&](int64_t id) -> Fate* {
    const Place* place = PlaceOf(id);
    return place == nullptr ? nullptr : &fates_[static_cast<size_t>(place - places_.data())];
  };
  std::map<int64_t, std::vector<int64_t>> leased;  // not committed
  const LogFilter filter{.payloads = false};
  FB_RETURN_IF_ERROR(ForEach(filter, [&](const LogRecord& record) {
    switch (record.event) {
      case LogEvent::kTrajectory: {
        Fate* fate = fate_of(record.id.trajectory_id);
        if (fate != nullptr && fate->kind == Fate::Kind::kUnknown) {
          fate->kind = Fate::Kind::kPending;
        }
        break;
      }
      case LogEvent::kReject:
        if (Fate* fate = fate_of(record.id.trajectory_id)) {
          *fate = {.kind = Fate::Kind::kRejected, .reason = record.reason};
        }
        break;
      case LogEvent::kLease:
        // Replaces the leases from it on.
        for (auto it = leased.lower_bound(record.batch); it != leased.end();
             it = leased.erase(it)) {
          for (const int64_t id : it->second) {
            if (Fate* fate = fate_of(id)) *fate = {.kind = Fate::Kind::kPending};
          }
        }
        for (const int64_t id : record.trajectory_ids) {
          if (Fate* fate = fate_of(id)) {
            *fate = {.kind = Fate::Kind::kLeased, .batch = record.batch};
          }
        }
        leased[record.batch] = record.trajectory_ids;
        break;
      case LogEvent::kCommit:
        for (auto it = leased.begin(); it != leased.end() && it->first <= record.batch;
             it = leased.erase(it)) {
          for (const int64_t id : it->second) {
            if (Fate* fate = fate_of(id)) fate->kind = Fate::Kind::kTrained;
          }
        }
        [[fallthrough]];
      case LogEvent::kConsume:
        for (const int64_t id : record.trajectory_ids) {
          if (Fate* fate = fate_of(id)) fate->kind = Fate::Kind::kTrained;
        }
        break;
      default:
        break;
    }
    return true;
  }));
  // The table knows what recycled records said, and what a restart undid.
  const Result<std::unique_ptr<Replayed>> replayed = ReplayLog();
  if (!replayed.ok()) {
    Note(replayed.status().message());
    return OkStatus();
  }
  const Table& table = (*replayed)->table;
  for (Fate& fate : fates_) {
    if (fate.kind == Fate::Kind::kPending || fate.kind == Fate::Kind::kLeased) fate = {};
  }
  for (const TrajectoryId& id : table.PendingIds()) {
    Fate* fate = fate_of(id.trajectory_id);
    if (fate == nullptr) continue;
    const int64_t batch = table.BatchOf(id);
    *fate = {.kind = batch == 0 ? Fate::Kind::kPending : Fate::Kind::kLeased, .batch = batch};
  }
  for (int64_t b = table.released_batch() + 1; b <= table.committed_batch(); ++b) {
    const BatchState* batch = table.FindBatch(b);
    if (batch == nullptr) continue;
    for (const Placed& member : table.Members(batch->groups)) {
      if (Fate* fate = fate_of(member.id.trajectory_id)) {
        *fate = {.kind = Fate::Kind::kTrained, .batch = b};
      }
    }
  }
  return OkStatus();
}

Fate LogReader::FateOf(int64_t trajectory_id) const {
  const Place* place = PlaceOf(trajectory_id);
  if (place == nullptr || fates_.empty()) return {};
  return fates_[static_cast<size_t>(place - places_.data())];
}

bool LogReader::IsNewest(const LogRecord& trajectory) const {
  const Place* place = PlaceOf(trajectory.id.trajectory_id);
  return place != nullptr && place->segment == trajectory.segment &&
         int64_t{place->offset_64} * static_cast<int64_t>(kRecordAlign) == trajectory.offset;
}

// kNotFound: its segment was recycled; kDataLoss: it is damaged. `trajectory_id` 0: any.
Result<std::string> LogReader::ReadPayload(const Place& place, int64_t trajectory_id) {
  const auto segment = std::ranges::find(segments_, place.segment, &SegmentInfo::number);
  if (segment == segments_.end()) return NotFound("its segment was recycled");
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<ReadOnlyFile> file, ReadOnlyFile::Open(Path(*segment)));
  const int64_t at = int64_t{place.offset_64} * static_cast<int64_t>(kRecordAlign);
  char raw[kRecordAlign];
  FB_RETURN_IF_ERROR(file->ReadAt(at, raw, sizeof(raw)));
  const std::optional<RecordHeader> header = ParseHeader({raw, sizeof(raw)}, place.segment);
  if (!header || (trajectory_id != 0 && header->trajectory_id != trajectory_id)) {
    const SegmentInfo now = Look(segment->file);
    return now.number == place.segment ? DataLoss("its record is damaged")
                                       : NotFound("its segment was recycled");
  }
  std::string payload;
  FB_RETURN_IF_ERROR(buffer::ReadPayload(*file, *header, at, &payload));
  return payload;
}

Result<Batch> LogReader::ReadBatch(int64_t batch_sequence) {
  FB_RETURN_IF_ERROR(Locate());
  Batch batch{.sequence = batch_sequence};
  std::vector<int64_t> ids;
  if (const auto lease = leases_.find(batch_sequence); lease != leases_.end()) {
    FB_ASSIGN_OR_RETURN(const std::string payload, ReadPayload(lease->second, 0));
    FB_ASSIGN_OR_RETURN(LeaseRecord record, ParseLease(payload));
    batch.learner_version = record.learner_version;
    ids = std::move(record.trajectory_ids);
  } else {
    // Its lease was recycled; the state may still name it.
    FB_ASSIGN_OR_RETURN(const std::unique_ptr<Replayed> replayed, ReplayLog());
    const Table* const table = &replayed->table;
    const BatchState* state = table->FindBatch(batch_sequence);
    if (state == nullptr) {
      return NotFound(
          batch_sequence < 1 || batch_sequence >= table->next_batch()
              ? fmt::format("batch {} was not leased: the last one is {}", batch_sequence,
                            table->next_batch() - 1)
              : fmt::format("batch {} is not in the log any more: batches up to {} were released",
                            batch_sequence, table->released_batch()));
    }
    batch.learner_version = state->learner_version;
    for (const Placed& member : table->Members(state->groups)) {
      ids.push_back(member.id.trajectory_id);
    }
  }
  for (const int64_t id : ids) {
    const Place* place = PlaceOf(id);
    const Result<std::string> payload =
        place == nullptr ? NotFound("its record is not there") : ReadPayload(*place, id);
    Result<Trajectory> trajectory = payload.ok() ? Decode(*payload) : payload.status();
    if (!trajectory.ok()) {
      return trajectory.status().WithContext(fmt::format(
          "batch {} is not whole in the log any more: trajectory {}", batch_sequence, id));
    }
    batch.trajectories.push_back(std::make_shared<const Trajectory>(std::move(*trajectory)));
  }
  std::ranges::sort(batch.trajectories, {}, [](const TrajectoryPtr& t) {
    return std::tuple(t->id.group_id, t->id.member);
  });
  return batch;
}

}  // namespace forebay::buffer
