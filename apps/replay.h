// Replay: one optimizer step of a run, taken again from the batch log and compared bit for bit.
//
// From the newest checkpoint before it (or the weights that the run began with) the batches after
// that checkpoint are read from the buffer's log and trained on by the same compiled programs, and
// each step's fingerprint is compared with the recorded one. Nothing in the run directory is
// changed, so a run that is still going may be read too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::apps {

struct ReplayOptions {
  std::string run;  // run directory
  int64_t step = 0;
  // "learner.learning_rate=3e-5": replays under a changed configuration, to see what it changes.
  std::vector<std::string> sets;
  std::function<void(const std::string&)> say;  // progress, a sentence each; may be empty
};

// One comparison.
struct ReplayRow {
  int64_t step = 0;
  std::string what;  // "loss", "checkpoint weights"
  std::string recorded, replayed;
  bool equal = false;
};

struct Replay {
  int64_t step = 0;
  int64_t from_step = 0;  // the checkpoint's; 0: the weights that the run began with
  std::vector<ReplayRow> rows;
  std::vector<std::string> notes;             // a sentence each: what else differs from the run
  const ReplayRow* first_difference() const;  // in the order of time and data flow; null if none
};

// Blocks. A difference is no error. Errors: kInvalidArgument (no such step number), kNotFound (no
// run, a step beyond the end, batches that were recycled: says which steps can be replayed),
// kDataLoss (a logged batch, a checkpoint or the record of the configuration is damaged).
Result<Replay> ReplayStep(const ReplayOptions& options);

// Steps [first, last] that can be replayed, from a checkpoint at `from_step`.
struct ReplayableRange {
  int64_t from_step = 0;
  int64_t first = 0, last = 0;
};
struct ReplayableSteps {
  std::vector<ReplayableRange> ranges;  // ascending; a step in several: the last one is used
  int64_t first_recorded = 0, last_recorded = 0;
};
// Reads the log, not the content of checkpoints. Errors as ReplayStep.
Result<ReplayableSteps> ListReplayable(const std::string& run);

std::string FormatReplay(const Replay& replay);
std::string ReplayJson(const Replay& replay);
std::string FormatReplayable(const ReplayableSteps& steps);

}  // namespace forebay::apps
