// The packing benchmark: see benchmarks.h.
//
// Lengths as agents make them: log-normal, median 300, p99 6,000, none above 8,192 tokens, 64
// sequences a step. First the learner itself runs on a stream of such batches, from its default
// shapes; the steps after the first 8 give padding_waste. Then sequences become fifteen times as
// short, and the learner goes on until it has compiled other shapes in the background and switched,
// or for 60 steps where they would gain too little (after_change). recompiles_after_warmup counts,
// over all of that, compilations that a step waited for.
//
// Then the same batches run packed and padded, interleaved, through the same step and model:
// - padded: what trainers do that pad to the longest of a micro-batch: one sequence a row, 8 rows
//   as they come, padded to the longest of them, in 8 compiled shapes that are chosen for it.
// - sorted (not with --quick): the same after sorting the batch by length, so that a micro-batch
//   holds its like.
// Packing, upload and the optimizer update are in the measured time, on all sides.
//
// The models are small, so that the benchmark is short. Attention skips padding on both sides and
// costs the same on both, so what packing gains depends on how large a part of the whole the rest
// is. The compared model (1 layer, width 192, feed-forward 2,304) is made so that the rest is 2.2
// times its attention in operations at these lengths, as in SmolLM2-135M; larger models have less
// attention, and gain more. The stream's model (width 32) is for counting only.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/smollm2.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/bucket_planner.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/micro_plan.h"
#include "forebay/learner/packing.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/learner/train_step.h"
#include "forebay/models/model.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"
#include "forebay/xla/client.h"

namespace forebay::bench {
namespace {

using learner::BucketShape;
using learner::MicroPlan;

constexpr int64_t kLongest = 8192;
constexpr int64_t kSequences = 64, kGroupSize = 8;  // of a step
constexpr int64_t kRowsPadded = 8;                  // of a padded micro-batch
constexpr double kLearningRate = 1e-4;
constexpr int64_t kWarmUpSteps = 8, kChangedSteps = 60;
constexpr double kMedian = 300, kChangedMedian = 20;

struct TinyModel {
  std::unique_ptr<models::Model> model;
  weights::TensorMap tensors;
};

struct Sizes {
  int64_t steps;      // of the learner, after the warm-up
  int64_t sequences;  // packed and padded
  int repeats;
  bool sorted;  // compare with the third side, too
};
constexpr Sizes kFull = {.steps = 24, .sequences = 64, .repeats = 5, .sorted = true};
constexpr Sizes kQuick = {.steps = 4, .sequences = 24, .repeats = 3, .sorted = false};

int64_t DrawLength(Rng& rng, double median = kMedian) {
  const double sigma = std::log(6000 / kMedian) / 2.3263;  // the normal's 99th percentile
  const double length = median * std::exp(sigma * rng.Normal());
  return std::clamp(static_cast<int64_t>(length), int64_t{8}, kLongest);
}

buffer::Batch DrawBatch(int64_t sequence, int64_t version, Rng& rng, double median,
                        int64_t sequences = kSequences) {
  buffer::Batch batch{.sequence = sequence, .learner_version = version};
  for (int64_t i = 0; i < sequences; ++i) {
    Trajectory t;
    t.id = {.trajectory_id = sequence * kSequences + i,
            .group_id = sequence * kSequences + i / kGroupSize,
            .member = static_cast<int32_t>(i % kGroupSize)};
    const int64_t length = DrawLength(rng, median);
    for (int64_t k = 0; k < length; ++k) {
      const bool sampled = k >= length / 3;
      t.tokens.push_back(static_cast<int32_t>(rng.Below(weights::kTinyVocabSize)));
      t.loss_mask.push_back(sampled ? 1 : 0);
      t.rollout_logprobs.push_back(sampled ? static_cast<float>(-5.5 + 0.1 * rng.Normal()) : 0.0F);
    }
    t.versions = {{version, static_cast<int32_t>(length - length / 3)}};
    t.rewards = {{"r", rng.Normal()}};
    batch.trajectories.push_back(std::make_shared<const Trajectory>(std::move(t)));
  }
  return batch;
}

std::vector<int64_t> Lengths(const buffer::Batch& batch) {
  std::vector<int64_t> lengths;
  lengths.reserve(batch.trajectories.size());
  for (const auto& t : batch.trajectories) {
    lengths.push_back(static_cast<int64_t>(t->tokens.size()));
  }
  return lengths;
}

std::vector<learner::TrainSequence> Sequences(const buffer::Batch& batch) {
  std::vector<learner::TrainSequence> sequences;
  sequences.reserve(batch.trajectories.size());
  for (const auto& t : batch.trajectories) {
    sequences.push_back({.tokens = t->tokens,
                         .loss_mask = t->loss_mask,
                         .rollout_logprobs = t->rollout_logprobs,
                         .advantage = t->reward(),
                         .token_weight = 1e-5});
  }
  return sequences;
}

// One sequence a row, rows in `order`, each micro-batch in the shortest shape for its longest.
std::vector<MicroPlan> PlanPadded(const std::vector<int64_t>& lengths,
                                  const std::vector<int32_t>& order,
                                  const std::vector<BucketShape>& shapes) {
  std::vector<MicroPlan> plans;
  for (size_t begin = 0; begin < order.size(); begin += kRowsPadded) {
    MicroPlan plan;
    int64_t longest = 0;
    for (size_t i = begin; i < std::min(order.size(), begin + kRowsPadded); ++i) {
      plan.rows.push_back({{order[i], 0}});
      longest = std::max(longest, lengths[static_cast<size_t>(order[i])]);
    }
    plan.shape = *std::ranges::lower_bound(shapes, longest, {}, &BucketShape::length);
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::vector<int32_t> Order(const std::vector<int64_t>& lengths, bool sorted) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  if (sorted) {
    std::ranges::stable_sort(order, {}, [&](int32_t i) { return lengths[static_cast<size_t>(i)]; });
  }
  return order;
}

// The 8 shapes that suit padded micro-batches best: the planner's own search, on what it would see.
Result<std::vector<BucketShape>> PaddedShapes(Rng& rng) {
  learner::LengthHistogram longest_of;
  for (int i = 0; i < 1000; ++i) {
    int64_t longest = 0;
    for (int64_t k = 0; k < kRowsPadded; ++k) longest = std::max(longest, DrawLength(rng));
    ++longest_of[longest];
    ++longest_of[DrawLength(rng)];  // sorted micro-batches have any length
  }
  ++longest_of[kLongest];
  std::vector<int64_t> candidates;
  for (int64_t n = learner::kRowGranularity; n <= kLongest; n += learner::kRowGranularity) {
    candidates.push_back(n);
  }
  FB_ASSIGN_OR_RETURN(const auto lengths,
                      learner::PlanRowLengths(longest_of, candidates, learner::kShapesMax,
                                              {.attention = learner::AttentionCost::kSegments}));
  std::vector<BucketShape> shapes;
  shapes.reserve(lengths.size());
  for (const int64_t length : lengths) shapes.push_back({kRowsPadded, length});
  return shapes;
}

double Waste(int64_t real, int64_t padded) {
  return 1 - static_cast<double>(real) / static_cast<double>(padded);
}

nlohmann::ordered_json ShapesJson(const std::vector<BucketShape>& shapes) {
  auto list = nlohmann::ordered_json::array();
  for (const BucketShape shape : shapes) list.push_back({shape.rows, shape.length});
  return list;
}

// What the learner was given over some steps, and how long they took.
struct Stretch {
  int64_t real = 0, padded = 0, shapes_most = 0;
  std::vector<double> seconds;

  void Add(const learner::StepMetrics& m) {
    real += m.packed_tokens;
    padded += m.padded_tokens;
    shapes_most = std::max(shapes_most, m.shapes);
    seconds.push_back(m.wall_s);
  }
};

// The learner on a stream of batches; returns the shapes that it had before the lengths changed.
Result<std::vector<BucketShape>> RunStream(const Sizes& sizes, const BenchOptions& options,
                                           const TinyModel& tiny, xla::Client& client, Rng& rng,
                                           nlohmann::ordered_json* fields) {
  learner::LearnerOptions o;
  o.tokens_max = kLongest;
  o.tokens_per_program = kLongest;
  o.shapes_max = learner::kShapesMax;
  o.replan_every_steps = 4;
  o.entropy_metric = false;
  o.schedule.learning_rate = kLearningRate;
  options.Say("the learner on a stream of batches");
  FB_ASSIGN_OR_RETURN(
      const auto run,
      learner::Learner::Create(o, client, *tiny.model, {.train = {.params = tiny.tensors}}));
  const int64_t warm = client.counters().compiled;
  const auto step = [&](double median) {
    return run->Step(DrawBatch(run->step() + 1, run->policy_version(), rng, median));
  };
  Stretch measured, before, after;
  for (int64_t i = 0; i < kWarmUpSteps + sizes.steps; ++i) {
    FB_ASSIGN_OR_RETURN(const auto m, step(kMedian));
    if (i >= kWarmUpSteps) measured.Add(m);
  }
  const std::vector<BucketShape> shapes = run->buckets();
  options.Say("shorter sequences");
  const int64_t ahead = run->programs_ahead();
  for (int64_t i = 0; i < kChangedSteps && after.seconds.size() < kWarmUpSteps; ++i) {
    FB_ASSIGN_OR_RETURN(const auto m, step(kChangedMedian));
    (run->buckets() == shapes ? before : after).Add(m);
  }
  (*fields)["padding_waste"] = Waste(measured.real, measured.padded);
  (*fields)["shapes"] = std::max({measured.shapes_most, before.shapes_most, after.shapes_most});
  (*fields)["recompiles_after_warmup"] = client.counters().compiled - warm - run->programs_ahead();
  (*fields)["tokens_per_s_vs_padded"] = nullptr;
  (*fields)["step_seconds"] = ToJson(Summarize(measured.seconds));
  (*fields)["row_shapes"] = ShapesJson(shapes);
  auto& change = (*fields)["after_change"];
  change["steps_until_switch"] = before.seconds.size();
  change["padding_waste_before"] = Waste(before.real, before.padded);
  change["compiled_ahead"] = run->programs_ahead() - ahead;
  change["step_seconds_before"] = ToJson(Summarize(before.seconds));
  if (!after.seconds.empty()) {
    change["padding_waste_after"] = Waste(after.real, after.padded);
    change["step_seconds_after"] = ToJson(Summarize(after.seconds));
    change["row_shapes"] = ShapesJson(run->buckets());
  }
  return shapes;
}

Result<TinyModel> MakeTiny(int64_t width, int64_t heads, int64_t ff_width) {
  const weights::ModelFiles files = weights::TinyModelFiles({.layers = 1,
                                                             .width = width,
                                                             .heads = heads,
                                                             .kv_heads = 1,
                                                             .ff_width = ff_width,
                                                             .context_tokens = kLongest});
  TinyModel out;
  FB_ASSIGN_OR_RETURN(out.model, models::Model::Create(files.config_json));
  FB_ASSIGN_OR_RETURN(out.tensors, out.model->ToCheckpoint(models::RandomWeights(*out.model, 1),
                                                           models::LayerLayout::kPerLayer));
  return out;
}

// All batches once, planned by `plan`; adds up real and padded tokens.
template <typename PlanFn>
Result<double> RunBatches(learner::TrainStep& step, const std::vector<buffer::Batch>& batches,
                          const PlanFn& plan, int64_t* real, int64_t* padded) {
  *real = *padded = 0;
  const TimePoint start = Now();
  for (const buffer::Batch& batch : batches) {
    FB_ASSIGN_OR_RETURN(const std::vector<MicroPlan> plans, plan(Lengths(batch)));
    const auto sequences = Sequences(batch);
    std::vector<learner::MicroBatch> micro;
    for (const MicroPlan& p : plans) {
      micro.push_back(learner::FillMicroBatch(p.rows, sequences, p.shape));
      *real += micro.back().real_tokens;
      *padded += p.shape.tokens();
    }
    FB_RETURN_IF_ERROR(step.Run(micro, kLearningRate).status());
  }
  return Seconds(Now() - start);
}

}  // namespace

Result<nlohmann::ordered_json> PackingBench(const BenchOptions& options) {
  const Sizes& sizes = options.quick ? kQuick : kFull;
  FB_ASSIGN_OR_RETURN(const TinyModel narrow, MakeTiny(32, 1, 64));
  FB_ASSIGN_OR_RETURN(const TinyModel wide, MakeTiny(192, 3, 2304));
  // Without a cache on disk: compilations are what is counted.
  FB_ASSIGN_OR_RETURN(const std::string plugin, xla::FindPlugin(""));
  FB_ASSIGN_OR_RETURN(const auto client, xla::Client::Create({.plugin_path = plugin}));
  Rng rng(17);
  nlohmann::ordered_json fields;
  FB_ASSIGN_OR_RETURN(const auto packed_shapes,
                      RunStream(sizes, options, narrow, *client, rng, &fields));

  options.Say("compiling the padded shapes");
  FB_ASSIGN_OR_RETURN(const auto padded_shapes, PaddedShapes(rng));
  const auto make = [&](const std::vector<BucketShape>& shapes) {
    return learner::TrainStep::Create(*client, *wide.model,
                                      {.gradient = {.entropy = false}, .buckets = shapes},
                                      {.params = wide.tensors});
  };
  FB_ASSIGN_OR_RETURN(const auto packed_step, make(packed_shapes));
  FB_ASSIGN_OR_RETURN(const auto padded_step, make(padded_shapes));
  const std::vector<buffer::Batch> batches = {DrawBatch(1, 0, rng, kMedian, sizes.sequences)};

  struct Tokens {
    int64_t real = 0, padded = 0;
  };
  std::vector<Tokens> tokens(3);
  std::vector<Side> sides;
  sides.push_back({"packed", [&] {
                     const auto plan = [&](const std::vector<int64_t>& lengths) {
                       return learner::PlanMicroBatches(lengths, packed_shapes);
                     };
                     return RunBatches(*packed_step, batches, plan, &tokens[0].real,
                                       &tokens[0].padded);
                   }});
  for (const bool sorted : {false, true}) {
    if (sorted && !sizes.sorted) break;
    Tokens& own = tokens[sorted ? 2 : 1];
    sides.push_back(
        {sorted ? "sorted" : "padded", [&, sorted] {
           const auto plan =
               [&](const std::vector<int64_t>& lengths) -> Result<std::vector<MicroPlan>> {
             return PlanPadded(lengths, Order(lengths, sorted), padded_shapes);
           };
           return RunBatches(*padded_step, batches, plan, &own.real, &own.padded);
         }});
  }
  options.Say("packed against padded");
  FB_ASSIGN_OR_RETURN(const auto times, Interleave(sides, sizes.repeats));
  fields["tokens_per_s_vs_padded"] = times[1].seconds.median / times[0].seconds.median;
  if (sizes.sorted) {
    fields["tokens_per_s_vs_sorted"] = times[2].seconds.median / times[0].seconds.median;
  }
  fields["cpu_seconds_vs_padded"] = times[1].cpu_seconds.median / times[0].cpu_seconds.median;
  for (size_t i = 0; i < sides.size(); ++i) {
    auto& side = fields[sides[i].name];
    side["tokens_per_s"] = static_cast<double>(tokens[i].real) / times[i].seconds.median;
    side["padding_waste"] = Waste(tokens[i].real, tokens[i].padded);
    side["seconds"] = ToJson(times[i].seconds);
    side["cpu_seconds"] = ToJson(times[i].cpu_seconds);
  }
  fields["padded_shapes"] = ShapesJson(padded_shapes);
  return fields;
}

}  // namespace forebay::bench
