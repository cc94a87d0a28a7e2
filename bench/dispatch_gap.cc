#include "bench/dispatch_gap.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "bench/buffer_scratch.h"
#include "bench/harness.h"
#include "bench/smollm2.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/xla/client.h"

namespace forebay::bench {
namespace {

constexpr int64_t kRowTokens = 512, kRows = 2, kVocab = 49152;
// One group a step: what fills the rows.
constexpr std::array<int64_t, 4> kLengths = {300, 212, 400, 112};

Trajectory DrawTrajectory(int64_t group, size_t member, Rng& rng) {
  Trajectory t;
  t.id = {.trajectory_id = group * 16 + static_cast<int64_t>(member) + 1,
          .group_id = group,
          .member = static_cast<int32_t>(member),
          .task_id = group};
  t.environment = "random";
  const int64_t length = kLengths[member], prompt = length / 3;
  for (int64_t i = 0; i < length; ++i) {
    const bool sampled = i >= prompt;
    t.tokens.push_back(static_cast<int32_t>(rng.Below(kVocab)));
    t.loss_mask.push_back(sampled ? 1 : 0);
    t.rollout_logprobs.push_back(sampled ? static_cast<float>(-14 + rng.Normal()) : 0.0F);
  }
  t.versions = {{0, static_cast<int32_t>(length - prompt)}};
  t.turns = {{.kind = TurnKind::kPrompt, .begin = 0, .end = static_cast<int32_t>(prompt)},
             {.kind = TurnKind::kAction,
              .begin = static_cast<int32_t>(prompt),
              .end = static_cast<int32_t>(length)}};
  t.rewards = {{"r", static_cast<double>(member % 2)}};
  return t;
}

// All batches, before the first is leased.
Status Fill(buffer::Buffer& buffer, int64_t groups) {
  Rng rng(3);
  for (int64_t group = 1; group <= groups; ++group) {
    for (size_t member = 0; member < kLengths.size(); ++member) {
      const Trajectory t = DrawTrajectory(group, member, rng);
      FB_RETURN_IF_ERROR(buffer.Dispatch(t.id));
      Status appended = Unavailable("no answer");
      buffer.Append(t, Now() + FromSeconds(10), [&](Status s) { appended = std::move(s); });
      FB_RETURN_IF_ERROR(appended);  // memory: acknowledged before the return
    }
  }
  return OkStatus();
}

}  // namespace

Result<nlohmann::ordered_json> MeasureDispatchGap(const DispatchGapOptions& options,
                                                  const BenchOptions& bench, const SmolLm2& smol,
                                                  xla::Client& client) {
  const int64_t steps = options.steps + 1;
  learner::LearnerOptions o{.steps = steps, .groups_per_step = 1, .max_staleness = steps};
  o.schedule.learning_rate = 1e-5;
  o.tokens_max = kRowTokens;
  o.row_lengths = {kRowTokens};
  o.tokens_per_program = kRows * kRowTokens;
  std::optional<ScratchFolder> folder;
  if (options.checkpoint) {
    FB_ASSIGN_OR_RETURN(ScratchFolder made, ScratchFolder::Create());
    folder.emplace(std::move(made));
    o.checkpoint_folder = folder->path();
    o.checkpoint_every_steps = steps / 2;
  }
  FB_ASSIGN_OR_RETURN(const auto buffer,
                      buffer::Buffer::Open({.durability = buffer::Durability::kMemory,
                                            .group_size = static_cast<int32_t>(kLengths.size()),
                                            .max_staleness = steps},
                                           0, {}, nullptr));
  FB_RETURN_IF_ERROR(Fill(*buffer, steps));
  bench.Say("a run, for its dispatch gaps");
  FB_ASSIGN_OR_RETURN(
      const auto run,
      learner::Learner::Create(o, client, *smol.model, {.train = {.params = smol.tensors}}));
  std::vector<learner::StepMetrics> taken;
  FB_RETURN_IF_ERROR(
      run->Run(*buffer, {.metrics = [&](const learner::StepMetrics& m) { taken.push_back(m); }}));

  double busy = 0, gap = 0, pack = 0, publish = 0;
  std::vector<double> seconds;
  for (size_t i = 1; i < taken.size(); ++i) {  // nothing can be ready before the first
    const learner::StepMetrics& m = taken[i];
    busy += m.device_s;
    gap += m.dispatch_gap_s;
    pack += m.pack_s + m.upload_s;
    publish += m.publish_s;
    seconds.push_back(m.wall_s);
  }
  return nlohmann::ordered_json{{"dispatch_gap_fraction", gap / (busy + gap)},
                                {"step_seconds", ToJson(Summarize(seconds))},
                                {"compute_seconds", busy},
                                {"gap_seconds", gap},
                                {"pack_upload_seconds", pack},
                                {"publish_seconds", publish},
                                {"checkpoint", options.checkpoint}};
}

}  // namespace forebay::bench
