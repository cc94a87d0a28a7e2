#include "apps/run_checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/checkpoint.h"

namespace forebay::apps {

Result<learner::LoadedCheckpoint> LoadRunCheckpoint(const std::string& run, int64_t step) {
  const std::string folder = run + "/checkpoints";
  const std::vector<learner::CheckpointInfo> there = learner::ListCheckpoints(folder);
  const auto is_it = [&](const learner::CheckpointInfo& one) { return one.step == step; };
  if (step >= 0 && !there.empty() && std::ranges::none_of(there, is_it)) {
    std::string steps;
    for (const learner::CheckpointInfo& one : there) {
      steps += fmt::format("{}{}", steps.empty() ? "" : ", ", one.step);
    }
    return NotFound(
        fmt::format("'{}' holds no checkpoint of step {}; there are: {}", folder, step, steps));
  }
  FB_ASSIGN_OR_RETURN(learner::LoadedCheckpoint checkpoint,
                      step < 0
                          ? learner::LoadLatestCheckpoint(folder)
                          : learner::ReadCheckpoint(fmt::format("{}/step_{:06}", folder, step)));
  for (const std::string& note : checkpoint.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  return checkpoint;
}

}  // namespace forebay::apps
