// What the learner's options mean to its parts, and to plans of a run.
#pragma once

#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/adaptive_shapes.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/shape_planner.h"
#include "forebay/learner/train_batch.h"
#include "forebay/learner/train_step.h"

namespace forebay::learner {

// kInvalidArgument names the first option that is out of range, and what would be right.
Status ValidateOptions(const LearnerOptions& options);

// The shapes to begin with. kInvalidArgument when the longest row cannot hold tokens_max.
Result<std::vector<BucketShape>> Buckets(const LearnerOptions& options);

ShapePlannerOptions PlannerOptions(const LearnerOptions& options);
// Without planning and without a log where row_lengths say it all.
AdaptiveShapesOptions ShapeOptions(const LearnerOptions& options);
TrainStepOptions StepOptions(const LearnerOptions& options, std::vector<BucketShape> buckets);
TrainBatchOptions BatchOptions(const LearnerOptions& options);

}  // namespace forebay::learner
