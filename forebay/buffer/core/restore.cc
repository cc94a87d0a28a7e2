#include "forebay/buffer/core/restore.h"

#include <cstdint>
#include <set>
#include <string>

#include "fmt/core.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

void UnleaseFrom(Table& table, int64_t sequence, const std::string& why, Recovery& report) {
  if (sequence >= table.next_batch()) return;
  report.notes.push_back(
      fmt::format("{}: batches from {} on are not replayed, their trajectories are pending again",
                  why, sequence));
  table.UnleaseFrom(sequence);
}

// An older checkpoint than the log's last commit was restored.
void GoBack(Table& table, int64_t committed_batch, Recovery& report) {
  const int64_t logged = table.committed_batch();
  const Result<int64_t> back = table.Uncommit(committed_batch);
  if (back.ok()) {
    report.notes.push_back(
        fmt::format("the checkpoint holds batches up to {}, the log had committed {}: {} later "
                    "batches are replayed",
                    committed_batch, logged, *back));
    return;
  }
  report.notes.push_back(fmt::format(
      "the checkpoint holds batches up to {}, the log had committed {}, and {}: training goes on "
      "with new batches",
      committed_batch, logged, back.status().message()));
  UnleaseFrom(table, logged + 1, "they would follow other weights", report);
  // What is left of them has no use, and their numbers are given again.
  table.Release(logged);
  table.SetCommitted(committed_batch);
  table.SetNextBatch(committed_batch + 1);
}

}  // namespace

void RestoreCommits(Table& table, int64_t committed_batch, const std::set<int64_t>& consumed,
                    Recovery& report) {
  if (committed_batch >= table.next_batch()) {
    if (consumed.count(committed_batch) == 0) {
      report.notes.push_back(
          fmt::format("the checkpoint holds batches up to {}, the log knows leases up to {}",
                      committed_batch, table.next_batch() - 1));
    }
    table.Commit(table.next_batch() - 1).ok();
    table.SetCommitted(committed_batch);
    table.SetNextBatch(committed_batch + 1);
    return;
  }
  if (committed_batch < table.committed_batch()) return GoBack(table, committed_batch, report);
  for (int64_t batch = table.committed_batch() + 1; batch <= committed_batch; ++batch) {
    if (table.FindBatch(batch) != nullptr || consumed.count(batch) > 0) continue;
    report.notes.push_back(fmt::format(
        "the lease of batch {}, which the checkpoint holds, is not in the log: its trajectories "
        "may be trained on again",
        batch));
  }
  table.Commit(committed_batch).ok();
}

void GiveUpTrajectory(Table& table, const TrajectoryId& id, Recovery& report) {
  const int64_t batch = table.BatchOf(id);
  if (batch != 0) {
    UnleaseFrom(table, batch, fmt::format("batch {} lost trajectory {}", batch, id.trajectory_id),
                report);
  }
  table.Reject(id, RejectReason::kQuarantined).ok();
  report.notes.push_back(
      fmt::format("trajectory {} (group {}, member {}) cannot be read: it must be sampled again",
                  id.trajectory_id, id.group_id, id.member));
}

void EndAttempts(Table& table, const std::set<int64_t>& damaged, bool implied_dispatch) {
  for (const TrajectoryId& id : table.InFlightIds()) {
    if (implied_dispatch) {
      table.Undispatch(id).ok();
      continue;
    }
    table
        .Reject(id, damaged.count(id.trajectory_id) > 0 ? RejectReason::kQuarantined
                                                        : RejectReason::kLostInCrash)
        .ok();
  }
}

void CheckReplays(Table& table, int64_t committed_batch, Recovery& report) {
  for (int64_t sequence = committed_batch + 1; sequence < table.next_batch(); ++sequence) {
    if (table.FindBatch(sequence) == nullptr) {
      UnleaseFrom(table, sequence, fmt::format("the lease of batch {} is not in the log", sequence),
                  report);
      table.SetNextBatch(sequence);
      return;
    }
    ++report.replay_batches;
  }
}

}  // namespace forebay::buffer
