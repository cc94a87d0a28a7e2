// The shape log: from which optimizer step on which shapes were used, so that a resumed run and a
// replay pack as the run did and give the same bits.
//
// A JSON file, replaced atomically before new shapes are first used:
//   [{"step": 0, "shapes": [[2, 512]]}, {"step": 120, "shapes": [[1, 512], [1, 8192]]}]
// `step` counts the steps done before the switch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {

using ShapeHistory = std::map<int64_t, std::vector<BucketShape>>;  // step -> from then on

// Empty when there is no such file. kDataLoss for what no learner writes.
Result<ShapeHistory> ReadShapeLog(const std::string& path);

// Makes the folder, too.
Status WriteShapeLog(const std::string& path, const ShapeHistory& history);

// The shapes at `step`, or null when the history begins later.
const std::vector<BucketShape>* ShapesAt(const ShapeHistory& history, int64_t step);

}  // namespace forebay::learner
