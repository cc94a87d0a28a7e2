#include "apps/run_checkpoint.h"

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "forebay/base/status.h"
#include "forebay/learner/checkpoint.h"

namespace forebay::apps {

Result<learner::LoadedCheckpoint> LoadRunCheckpoint(const std::string& run, int64_t step) {
  const std::string folder = run + "/checkpoints";
  FB_ASSIGN_OR_RETURN(learner::LoadedCheckpoint checkpoint,
                      step < 0
                          ? learner::LoadLatestCheckpoint(folder)
                          : learner::ReadCheckpoint(fmt::format("{}/step_{:06}", folder, step)));
  for (const std::string& note : checkpoint.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  return checkpoint;
}

}  // namespace forebay::apps
