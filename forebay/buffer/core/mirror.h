// TableMirror: applies records of the log to a Table, leniently, because a record may have been
// lost.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/writer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// Used by recovery for what was written, and by the writer for what is being written. Not
// thread-safe.
class TableMirror : public LogMirror {
 public:
  explicit TableMirror(Table table) : table_(std::move(table)) {}

  void Apply(const RecordHeader& header, std::string_view payload) override;
  // A trajectory whose payload was read elsewhere.
  void ApplyTrajectory(const RecordHeader& header, const TrajectoryId& id);
  std::string Snapshot() const override { return table_.EncodeSnapshot(); }
  bool SegmentIsLive(uint32_t segment) const override { return table_.SegmentIsLive(segment); }

  Table& table() { return table_; }
  const Table& table() const { return table_; }
  // Leases that did not fit because a record of a member was lost. They may still have been trained
  // on.
  const std::map<int64_t, LeaseRecord>& unapplied_leases() const { return unapplied_leases_; }
  // Counts the groups of these trajectories as trained, as far as they are open. Gives how many
  // there were.
  int64_t Consume(const std::vector<int64_t>& trajectory_ids);
  // One sentence for each record that did not fit the state.
  std::vector<std::string> TakeNotes() { return std::exchange(notes_, {}); }

 private:
  void ApplyReject(const RejectRecord& reject);
  void ApplyLease(const LeaseRecord& lease);
  void ApplyCommit(const LeaseRecord& commit);
  bool ForceDispatch(const TrajectoryId& id);

  Table table_;
  std::map<int64_t, LeaseRecord> unapplied_leases_;  // by batch
  std::vector<std::string> notes_;
};

}  // namespace forebay::buffer
