// The checkpoint of a run that a command names, or the newest.
#pragma once

#include <cstdint>
#include <string>

#include "forebay/base/status.h"
#include "forebay/learner/checkpoint.h"

namespace forebay::apps {

// `step` < 0: the newest that can be read. Notes about others go to standard error. Errors as
// LoadLatestCheckpoint and ReadCheckpoint.
Result<learner::LoadedCheckpoint> LoadRunCheckpoint(const std::string& run, int64_t step);

}  // namespace forebay::apps
