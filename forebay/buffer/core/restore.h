// What recovery decides about a Table once the log is read: what the restored weights were trained
// on, what is lost, and what is played again. Each adds to `report.notes`.
#pragma once

#include <cstdint>
#include <set>

#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// Makes "committed" mean what the caller's weights say, not what the log says. `consumed`: batches
// that were counted as trained without their lease.
void RestoreCommits(Table& table, int64_t committed_batch, const std::set<int64_t>& consumed,
                    Recovery& report);
// Its record is lost: it must be sampled again.
void GiveUpTrajectory(Table& table, const TrajectoryId& id, Recovery& report);
// Nobody works on attempts in flight any more. With implied dispatch their appends were not
// acknowledged, and may be repeated: they never were.
void EndAttempts(Table& table, const std::set<int64_t>& damaged, bool implied_dispatch);
// Replays must follow the committed batch without a gap: each is one optimizer step. Counts them.
void CheckReplays(Table& table, int64_t committed_batch, Recovery& report);

}  // namespace forebay::buffer
