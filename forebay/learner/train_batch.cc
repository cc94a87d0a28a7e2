#include "forebay/learner/train_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/advantages.h"
#include "forebay/learner/fingerprint.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/micro_plan.h"
#include "forebay/learner/stats.h"
#include "forebay/learner/token_weights.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::learner {
namespace {

Status CheckTrainable(const Trajectory& t, const buffer::Batch& batch, int64_t max_staleness) {
  const auto name = [&] {
    return fmt::format("trajectory {} (group {}, member {}) of batch {}", t.id.trajectory_id,
                       t.id.group_id, t.id.member, batch.sequence);
  };
  if (!Trains(t.outcome)) {
    return FailedPrecondition(fmt::format(
        "{} ended with {}: an infrastructure failure is never trained on; the buffer should have "
        "rejected it",
        name(), OutcomeName(t.outcome)));
  }
  if (!(t.temperature > 0) || !std::isfinite(t.temperature)) {
    return InvalidArgument(
        fmt::format("{} was sampled at temperature {}: greedy samples have no distribution to "
                    "learn from; train "
                    "with rollout.temperature above 0",
                    name(), t.temperature));
  }
  if (t.min_version() < 0) return OkStatus();  // no loss tokens: no age
  const int64_t age = batch.learner_version - t.min_version();
  if (age > max_staleness || t.max_version() > batch.learner_version) {
    return FailedPrecondition(fmt::format(
        "{} was sampled by versions {} to {}, but the learner leased it at version {} with "
        "max_staleness {}: nothing older is ever trained on, and nothing from the future",
        name(), t.min_version(), t.max_version(), batch.learner_version, max_staleness));
  }
  return OkStatus();
}

// Loss tokens of a trajectory that something predicts, over its branches.
int64_t TrainableTokensOf(const Trajectory& t) {
  int64_t out = 0;
  for (const auto& [begin, end] : Branches(t)) {
    out += TrainableTokens(std::span<const uint8_t>(t.loss_mask).subspan(begin, end - begin));
  }
  return out;
}

void Describe(const buffer::Batch& batch, std::span<const double> rewards, StepMetrics* metrics) {
  std::set<int64_t> groups;
  int64_t ages = 0;
  std::string digests;
  for (const auto& t : batch.trajectories) {
    digests += BytesDigest(Encode(*t));
    groups.insert(t->id.group_id);
    metrics->trajectory_ids.push_back(t->id.trajectory_id);
    metrics->tokens += static_cast<int64_t>(t->tokens.size());
    metrics->loss_tokens += TrainableTokensOf(*t);
    for (const auto& [begin, end] : Branches(*t)) {
      ++metrics->lengths[static_cast<int64_t>(end - begin)];
    }
    if (t->min_version() < 0) continue;
    const int64_t age = batch.learner_version - t->min_version();
    ++metrics->staleness[age];
    metrics->staleness_mean += static_cast<double>(age);
    ++ages;
  }
  if (ages > 0) {
    metrics->staleness_mean /= static_cast<double>(ages);
    metrics->staleness_min = metrics->staleness.begin()->first;
    metrics->staleness_max = metrics->staleness.rbegin()->first;
  }
  metrics->batch_digest = BytesDigest(digests);
  metrics->batch_sequence = batch.sequence;
  metrics->replay = batch.replay;
  metrics->trajectories = static_cast<int64_t>(batch.trajectories.size());
  metrics->groups = static_cast<int64_t>(groups.size());
  metrics->reward_mean = Mean(rewards);
  metrics->reward_std = SampleStdDev(rewards);
}

// The sequences that have a part in the step, with the weights of the whole batch: one for each
// branch of a trajectory, all with its advantage and the weight of its tokens.
std::vector<TrainSequence> Sequences(const buffer::Batch& batch, const TrainBatchOptions& options,
                                     std::span<const double> rewards, StepMetrics* metrics) {
  std::vector<int64_t> groups, loss_tokens;
  for (const auto& t : batch.trajectories) {
    groups.push_back(t->id.group_id);
    loss_tokens.push_back(TrainableTokensOf(*t));
  }
  const auto advantages = Advantages(options.advantage, rewards, groups);
  const auto weights = TokenWeights(options.aggregation, loss_tokens);
  metrics->zero_advantage = std::ranges::count(advantages, 0.0);

  std::vector<TrainSequence> sequences;
  if (metrics->zero_advantage == metrics->trajectories) return sequences;  // no gradient at all
  for (size_t i = 0; i < batch.trajectories.size(); ++i) {
    if (loss_tokens[i] == 0 || (options.skip_zero_advantage && advantages[i] == 0)) continue;
    const Trajectory& t = *batch.trajectories[i];
    const std::span<const uint8_t> loss_mask = t.loss_mask;
    for (const auto& [begin, end] : Branches(t)) {
      const size_t n = end - begin;
      if (TrainableTokens(loss_mask.subspan(begin, n)) == 0) continue;
      sequences.push_back({std::span(t.tokens).subspan(begin, n), loss_mask.subspan(begin, n),
                           std::span(t.rollout_logprobs).subspan(begin, n), advantages[i],
                           weights[i], t.temperature});
    }
  }
  return sequences;
}

}  // namespace

Result<TrainBatch> BuildTrainBatch(const buffer::Batch& batch, const TrainBatchOptions& options,
                                   std::span<const BucketShape> buckets) {
  std::vector<double> rewards;
  for (const auto& t : batch.trajectories) {
    FB_RETURN_IF_ERROR(CheckTrainable(*t, batch, options.max_staleness));
    rewards.push_back(t->reward());
  }
  TrainBatch out;
  Describe(batch, rewards, &out.metrics);
  const auto sequences = Sequences(batch, options, rewards, &out.metrics);
  out.lengths.reserve(sequences.size());
  for (const auto& sequence : sequences) {
    out.lengths.push_back(static_cast<int64_t>(sequence.tokens.size()));
  }
  FB_ASSIGN_OR_RETURN(const auto plans, PlanMicroBatches(out.lengths, buckets, options.cost));
  for (const MicroPlan& plan : plans) {
    out.micro_batches.push_back(FillMicroBatch(plan.rows, sequences, plan.shape));
    out.metrics.packed_tokens += out.micro_batches.back().real_tokens;
    out.metrics.padded_tokens += plan.shape.tokens();
  }
  out.metrics.micro_batches = static_cast<int64_t>(plans.size());
  return out;
}

}  // namespace forebay::learner
