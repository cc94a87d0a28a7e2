// Replay: applies records of the log to a Table, leniently, because a record may have been lost.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/buffer/log/record.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// Not thread-safe. Records come by ascending sequence.
class Replay {
 public:
  // `table` is the state after the records up to `state_sequence`, without the trajectories from
  // `replay_from` on that were being written.
  Replay(Table table, int64_t state_sequence, int64_t replay_from)
      : table_(std::move(table)),
        listed_(!table_.Restoring()),
        state_sequence_(state_sequence),
        replay_from_(replay_from) {}

  // Whether Apply wants to see the payload of this record.
  bool NeedsPayload(const RecordHeader& header) const;
  // Apply of this record comes soon: first kFar, then kNear, each some records before.
  void Ahead(const RecordHeader& header, Table::Ahead ahead) const {
    if (header.type != RecordType::kTrajectory || !table_.Restoring()) return;
    table_.PrefetchRestore(header.trajectory_id, header.group_id, ahead);
  }
  void Apply(const RecordHeader& header, uint32_t offset_64, std::string_view payload);

  // After the last record. Gives how many pending trajectories of the state were not found, if it
  // did not list them.
  int64_t FinishState();

  Table& table() { return table_; }
  // Pending trajectories of a state that lists them whose record was not seen where it says.
  std::vector<TrajectoryId> Unseen() const;
  // Leases that did not fit because a record of a member was lost. They may still have been trained
  // on.
  const std::map<int64_t, LeaseRecord>& unapplied_leases() const { return unapplied_leases_; }
  // Counts the groups of these trajectories as trained, as far as they are open. Gives how many
  // there were.
  int64_t Consume(const std::vector<int64_t>& trajectory_ids);
  // One sentence for each record that did not fit the state.
  std::vector<std::string> TakeNotes() { return std::exchange(notes_, {}); }

 private:
  void ApplyTrajectory(const RecordHeader& header, const PendingInfo& info);
  void ApplyLease(const LeaseRecord& lease);
  void ApplyCommit(const LeaseRecord& commit);
  bool ForceDispatch(const TrajectoryId& id);
  void Note(std::string note);

  Table table_;
  const bool listed_;
  const int64_t state_sequence_, replay_from_;
  int64_t not_found_ = 0;
  IdSet seen_;  // trajectories whose record lies where the table says
  std::map<int64_t, LeaseRecord> unapplied_leases_;  // by batch
  std::vector<std::string> notes_;
};

}  // namespace forebay::buffer
