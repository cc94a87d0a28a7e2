#include "forebay/learner/learner_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/adaptive_shapes.h"
#include "forebay/learner/bucket_planner.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/shape_planner.h"
#include "forebay/learner/train_batch.h"
#include "forebay/learner/train_step.h"
#include "forebay/models/parallel.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

// Inclusive.
template <typename T>
struct Range {
  std::string_view name;
  T value, low, high;
};

template <typename T>
Status CheckRange(const Range<T>& r) {
  if (r.value >= r.low && r.value <= r.high) return OkStatus();  // false for NaN
  return InvalidArgument(
      fmt::format("learner: {} is {}, it must be from {} to {}", r.name, r.value, r.low, r.high));
}

}  // namespace

Status ValidateOptions(const LearnerOptions& o) {
  constexpr int64_t kMany = int64_t{1} << 40;
  const Range<int64_t> integers[] = {
      {"steps", o.steps, 0, kMany},
      {"groups_per_step", o.groups_per_step, 1, 1 << 20},
      {"max_staleness", o.max_staleness, 0, kMany},
      {"tokens_max", o.tokens_max, 2, 1 << 24},
      {"tokens_per_program", o.tokens_per_program, 1, 1 << 24},
      {"shapes_max", o.shapes_max, 1, kShapesMax},
      {"replan_every_steps", o.replan_every_steps, 0, kMany},
      {"logprob_chunk", o.logprob_chunk, 1, 1 << 24},
      {"warmup_steps", o.schedule.warmup_steps, 0, kMany},
      {"decay_steps", o.schedule.decay_steps, 0, kMany},
      {"checkpoint_every_steps", o.checkpoint_every_steps, 0, kMany},
      {"checkpoints_kept", o.checkpoints_kept, 1, kMany},
  };
  const Range<double> numbers[] = {
      {"learning_rate", o.schedule.learning_rate, 0, 1e3},
      {"learning_rate_end", o.schedule.end_fraction, 0, 1},
      {"cost.attention_doubles_at", o.cost.attention_doubles_at, 1, 1e12},
      {"cost.program_tokens", o.cost.program_tokens, 0, 1e12},
      {"clip_low", o.loss.clip_low, 0, 1},
      {"clip_high", o.loss.clip_high, 0, 1e6},
      {"is_cap", o.loss.is_cap, 0, 1e6},
      {"token_scale", o.aggregation.token_scale, 0, 1e12},
      {"lease_deadline_s", o.lease_deadline_s, 1e-3, 1e9},
      {"checkpoint_deadline_s", o.checkpoint_deadline_s, 1e-3, 1e9},
  };
  for (const auto& range : integers) FB_RETURN_IF_ERROR(CheckRange(range));
  for (const auto& range : numbers) FB_RETURN_IF_ERROR(CheckRange(range));
  FB_RETURN_IF_ERROR(ValidateOptimizer(o.optimizer));
  return ValidateLora(o.lora);
}

Result<std::vector<BucketShape>> Buckets(const LearnerOptions& options) {
  if (options.row_lengths.empty()) return DefaultShapes(PlannerOptions(options).plan);
  FB_ASSIGN_OR_RETURN(auto buckets, MakeBuckets(options.row_lengths, options.tokens_per_program,
                                                PlannerOptions(options).plan.row_parts));
  if (buckets.back().length < options.tokens_max) {
    return InvalidArgument(fmt::format(
        "learner: an episode may have {} tokens, but the longest of the row lengths is {}: nothing "
        "is "
        "cut, so add a row length of at least {} or lower the token budget of an episode",
        options.tokens_max, buckets.back().length, options.tokens_max));
  }
  return buckets;
}

ShapePlannerOptions PlannerOptions(const LearnerOptions& options) {
  ShapePlannerOptions out{.plan = {.cost = options.cost,
                                   .tokens_max = options.tokens_max,
                                   .tokens_per_program = options.tokens_per_program,
                                   .shapes_max = options.shapes_max}};
  if (options.mesh.size() == 1) return out;
  // As models/parallel.h spreads them; tokens between layers are spread over tensor as well.
  const xla::PartitionSpec rows = models::RowsPartition();
  out.plan.row_parts = options.mesh.Size(rows.dim(0));
  out.plan.length_parts =
      options.mesh.Size(rows.dim(1)) * options.mesh.Size(xla::Axes{xla::kTensorAxis});
  return out;
}

AdaptiveShapesOptions ShapeOptions(const LearnerOptions& options) {
  if (!options.row_lengths.empty()) {
    return {.planner = PlannerOptions(options), .replan_every_steps = 0};
  }
  return {.planner = PlannerOptions(options),
          .replan_every_steps = options.replan_every_steps,
          .log = options.shape_log};
}

GradientProgramOptions GradientOptions(const LearnerOptions& options) {
  return {.layout = options.layout,
          .remat = options.remat,
          .logprob_chunk = options.logprob_chunk,
          .entropy = options.entropy_metric,
          .loss = options.loss,
          .lora = options.lora,
          .into_sum = options.layout == models::LayerLayout::kStacked,
          .compute = options.compute,
          .mesh = options.mesh,
          .parallel = options.parallel};
}

// A lease may be given little time; a device that computes is not to be called stalled for it.
constexpr double kStallSecondsMin = 600;

TrainStepOptions StepOptions(const LearnerOptions& options, std::vector<BucketShape> buckets) {
  return {.gradient = GradientOptions(options),
          .optimizer = options.optimizer,
          .buckets = std::move(buckets),
          .adapter_seed = static_cast<uint64_t>(options.seed),
          .stall_deadline_s = std::max(options.lease_deadline_s, kStallSecondsMin)};
}

TrainBatchOptions BatchOptions(const LearnerOptions& options) {
  return {.advantage = options.advantage,
          .aggregation = options.aggregation,
          .skip_zero_advantage = options.skip_zero_advantage,
          .max_staleness = options.max_staleness,
          .cost = options.cost};
}

}  // namespace forebay::learner
