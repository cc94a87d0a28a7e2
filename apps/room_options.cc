#include "apps/room_options.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/config.h"
#include "forebay/control/coordinator.h"
#include "forebay/learner/advantages.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/schedule.h"
#include "forebay/learner/token_weights.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::apps {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Its choices were checked (control/config_schema.cc).
models::ParallelOptions MakeParallelOptions(const control::MeshSection& mesh) {
  using models::ContextAttention, models::ExpertTraffic;
  models::ParallelOptions o;
  if (mesh.attention == "ring") o.context_attention = ContextAttention::kRing;
  if (mesh.attention == "gather") o.context_attention = ContextAttention::kGather;
  if (mesh.experts == "all_to_all") o.expert_traffic = ExpertTraffic::kAllToAll;
  if (mesh.experts == "gather") o.expert_traffic = ExpertTraffic::kGather;
  return o;
}

}  // namespace

int64_t MaxStaleness(const control::Config& config) {
  return config.run.mode == "sync" ? 0 : config.buffer.max_staleness;
}

learner::LearnerOptions MakeLearnerOptions(const control::Config& config,
                                           const std::string& checkpoint_folder) {
  const control::LearnerSection& l = config.learner;
  const auto advantage = learner::ParseAdvantageKind(l.advantage);
  const auto aggregation = learner::ParseAggregation(l.aggregation);
  const auto schedule = learner::ParseScheduleKind(l.schedule);
  const auto optimizer = learner::ParseOptimizerKind(l.optimizer);
  FB_CHECK(advantage && aggregation && schedule && optimizer,
           "the configuration's choices are the learner's");
  learner::LearnerOptions o;
  o.steps = config.run.steps;
  o.groups_per_step = l.groups_per_step;
  o.max_staleness = MaxStaleness(config);
  o.advantage = *advantage;
  o.aggregation.mode = *aggregation;
  o.loss = {.clip_low = l.clip_low, .clip_high = l.clip_high, .is_cap = l.is_cap};
  o.optimizer = {.kind = *optimizer,
                 .beta1 = l.beta1,
                 .beta2 = l.beta2,
                 .epsilon = l.adam_eps,
                 .momentum = l.momentum,
                 .weight_decay = l.weight_decay,
                 .grad_clip = l.grad_clip};
  o.schedule = {.kind = *schedule,
                .learning_rate = l.learning_rate,
                .warmup_steps = l.warmup_steps,
                .total_steps = config.run.steps,
                .decay_steps = l.decay_steps,
                .end_fraction = l.learning_rate_end};
  o.lora = {.rank = l.lora_rank,
            .alpha = l.lora_alpha,
            .rslora = l.lora_rslora,
            .targets = l.lora_targets};
  o.skip_zero_advantage = l.skip_zero_advantage;
  o.tokens_max = config.rollout.tokens_max;
  o.row_lengths = l.row_lengths;
  o.tokens_per_program = l.tokens_per_program;
  o.shapes_max = l.shapes_max;
  o.replan_every_steps = l.replan_every_steps;
  if (!checkpoint_folder.empty()) o.shape_log = checkpoint_folder + "/shapes.json";
  o.layout =
      l.layer_layout == "stacked" ? models::LayerLayout::kStacked : models::LayerLayout::kPerLayer;
  o.remat = l.remat;
  o.compute = l.compute == "bf16" ? xla::DType::kBF16 : xla::DType::kF32;
  const xla::MeshSizes sizes = MakeMeshSizes(config);
  const auto mesh = xla::Mesh::Create(
      sizes, sizes.data * sizes.fsdp * sizes.expert * sizes.context * sizes.tensor);
  FB_CHECK(mesh.ok(), "the configuration's mesh has few enough devices");
  o.mesh = *mesh;
  o.parallel = MakeParallelOptions(config.mesh);
  o.logprob_chunk = l.logprob_chunk;
  o.lease_deadline_s = l.lease_deadline_s;
  o.checkpoint_folder = checkpoint_folder;
  o.checkpoint_every_steps = config.checkpoint.every_steps;
  o.checkpoints_kept = config.checkpoint.keep;
  o.seed = config.run.seed;
  return o;
}

xla::MeshSizes MakeMeshSizes(const control::Config& config) {
  const control::MeshSection& m = config.mesh;
  return {
      .data = m.data, .fsdp = m.fsdp, .expert = m.expert, .context = m.context, .tensor = m.tensor};
}

rollout::XlaEngineOptions MakeEngineOptions(const control::Config& config) {
  const control::RolloutSection& r = config.rollout;
  rollout::XlaEngineOptions o;
  o.slots = r.slots;
  o.context = r.context;
  o.context_buckets = r.context_buckets;
  if (!r.prefill_chunks.empty()) o.prefill_chunks = r.prefill_chunks;
  // Every actor may wait at once, and an evaluation beside them.
  o.waiting_max = std::max(o.waiting_max, 2 * r.actors + config.eval.tasks * config.eval.samples);
  o.deterministic = r.deterministic;
  return o;
}

buffer::Durability DurabilityOf(std::string_view name) {
  if (name == "memory") return buffer::Durability::kMemory;
  return name == "os" ? buffer::Durability::kOs : buffer::Durability::kSync;
}

buffer::BufferOptions MakeBufferOptions(const control::Config& config, const std::string& folder) {
  const control::BufferSection& b = config.buffer;
  buffer::BufferOptions o;
  o.folder = folder;
  o.durability = DurabilityOf(b.durability);
  o.group_size = static_cast<int32_t>(config.learner.group_size);
  o.max_staleness = MaxStaleness(config);
  o.segment_bytes = b.segment_mb * kMiB;
  o.memory_bytes_max = b.memory_mb_max * kMiB;
  o.disk_bytes_max = b.disk_mb_max * kMiB;
  o.record_bytes_max = b.record_mb_max * kMiB;
  o.retain_committed = true;  // for forebay replay; the learner releases
  return o;
}

control::CoordinatorOptions MakeCoordinatorOptions(const control::Config& config) {
  return {.seed = static_cast<uint64_t>(config.run.seed),
          .groups_per_step = config.learner.groups_per_step,
          .group_size = static_cast<int32_t>(config.learner.group_size),
          .max_staleness = MaxStaleness(config),
          .actors = config.rollout.actors,
          .tasks = config.env.tasks,
          .attempts_max = config.rollout.attempts_max};
}

}  // namespace forebay::apps
