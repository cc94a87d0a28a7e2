// The learner's benchmark: see benchmarks.h.
//
// Both sides start from the packaged weights, get the same packed batch and return the same
// metrics; the first step's loss and gradient norm are compared, so that a peer that computes
// something else does not count. Ours runs as a run's learner does: through TrainStep, upload of
// the batch and download of the metrics included, and with the entropy of every token, which the
// peer leaves out.
//
// That times steps one by one. dispatch_gap_fraction is of a run (dispatch_gap.h): what a learner
// adds between them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/dispatch_gap.h"
#include "bench/harness.h"
#include "bench/jax_step.h"
#include "bench/smollm2.h"
#include "bench/torch_step.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/packing.h"
#include "forebay/learner/train_programs.h"
#include "forebay/learner/train_step.h"
#include "forebay/models/model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"

namespace forebay::bench {
namespace {

using learner::BucketShape;
using learner::MicroBatch;

constexpr BucketShape kShape = {.rows = 2, .length = 512};
constexpr double kLearningRate = 1e-5;
constexpr int64_t kVocab = 49152;
// The variant of the peer that is fastest on the CPU plugin, for --quick.
constexpr const char* kFastestVariant = "unrolled_flat";

// Full rows: what sequences of an agent's episodes look like when they are packed well. Random
// tokens; rollout log-probabilities around those that random tokens get.
MicroBatch MakeBatch() {
  const std::vector<int64_t> lengths = {300, 212, 400, 112};
  const std::vector<learner::Row> rows = {{{0, 0}, {1, 300}}, {{2, 0}, {3, 400}}};
  Rng rng(1);
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> masks;
  std::vector<std::vector<float>> logprobs;
  std::vector<learner::TrainSequence> sequences;
  sequences.reserve(lengths.size());
  for (const int64_t length : lengths) {
    tokens.emplace_back();
    masks.emplace_back();
    logprobs.emplace_back();
    for (int64_t t = 0; t < length; ++t) {
      tokens.back().push_back(static_cast<int32_t>(rng.Below(kVocab)));
      masks.back().push_back(t >= length / 3 ? 1 : 0);
      logprobs.back().push_back(static_cast<float>(-14 + rng.Normal()));
    }
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back({.tokens = tokens[i],
                         .loss_mask = masks[i],
                         .rollout_logprobs = logprobs[i],
                         .advantage = i % 2 == 0 ? 0.7 : -1.1,
                         .token_weight = 1.0 / 683});
  }
  return learner::FillMicroBatch(rows, sequences, kShape);
}

// What lives while our two programs run: weights, both moments, and the larger of the two programs'
// needs beyond them.
Result<int64_t> PeakBytes(xla::Client& client, const xla::Program& gradient,
                          const xla::Program& apply) {
  FB_ASSIGN_OR_RETURN(const auto gradient_program, client.Compile(gradient));  // cached by now
  FB_ASSIGN_OR_RETURN(const auto apply_program, client.Compile(apply));
  FB_ASSIGN_OR_RETURN(const xla::MemoryStats g, gradient_program->memory());
  FB_ASSIGN_OR_RETURN(const xla::MemoryStats a, apply_program->memory());
  const int64_t moments = 2 * g.argument_bytes;
  return std::max(moments + g.argument_bytes + g.output_bytes + g.temp_bytes,
                  a.argument_bytes + a.output_bytes - a.alias_bytes + a.temp_bytes);
}

Status Dump(const std::string& folder, const xla::Program& program) {
  if (folder.empty()) return OkStatus();
  FB_RETURN_IF_ERROR(MakeFolders(folder));
  return WriteFileAtomic(folder + "/forebay_" + program.name + ".mlir", program.stablehlo);
}

Status CheckSame(const std::string& name, double ours, double theirs) {
  const double gap = std::abs(ours - theirs);
  if (gap <= 1e-3 * std::abs(theirs) + 1e-5) return OkStatus();
  return Internal(fmt::format("the peer's {} is {}, ours is {}: the two steps are not the same",
                              name, theirs, ours));
}

// Of the sides [begin, end).
size_t Fastest(const std::vector<SideTimes>& times, size_t begin, size_t end) {
  size_t fastest = begin;
  for (size_t i = begin; i < end; ++i) {
    if (times[i].seconds.median < times[fastest].seconds.median) fastest = i;
  }
  return fastest;
}

}  // namespace

Result<nlohmann::ordered_json> LearnerBench(const BenchOptions& options) {
  FB_ASSIGN_OR_RETURN(const SmolLm2 smol, LoadSmolLm2());
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<xla::Client> client, MakeClient());
  const MicroBatch batch = MakeBatch();

  const learner::TrainStepOptions step_options{
      .gradient = {.host_kernels = client->calls_host_kernels()}, .buckets = {kShape}};
  options.Say("compiling our step");
  FB_ASSIGN_OR_RETURN(
      std::unique_ptr<learner::TrainStep> step,
      learner::TrainStep::Create(*client, *smol.model, step_options, {.params = smol.tensors}));
  learner::StepOutcome first;
  std::vector<Side> sides;
  sides.push_back({"forebay", [&]() -> Result<double> {
                     const TimePoint start = Now();
                     FB_ASSIGN_OR_RETURN(const learner::StepOutcome outcome,
                                         step->Run({&batch, 1}, kLearningRate));
                     if (step->updates() == 1) first = outcome;
                     return Seconds(Now() - start);
                   }});

  const std::string folder = std::string(FOREBAY_SOURCE_DIR) + "/.deps/peers/jax_learner";
  std::vector<std::string> variants = JaxVariants(folder);
  if (options.quick) std::erase_if(variants, [](const auto& v) { return v != kFastestVariant; });
  if (variants.empty()) options.Say("no peer: bench/peers/setup_jax.sh makes it");
  std::vector<std::unique_ptr<JaxStep>> peers;
  std::string jax_version;
  for (const std::string& variant : variants) {
    options.Say("compiling the peer's step, " + variant);
    FB_ASSIGN_OR_RETURN(auto peer, JaxStep::Create(folder, variant, *client));
    if (peer->shape() != kShape) {
      return InvalidArgument(
          "the peer's step is of another shape; run bench/peers/setup_jax.sh 2 512");
    }
    FB_RETURN_IF_ERROR(peer->Load(*smol.model, smol.tensors));
    jax_version = peer->jax_version();
    sides.push_back(
        {"jax " + variant, [&, p = peer.get(), updates = int64_t{0}]() mutable -> Result<double> {
           const TimePoint start = Now();
           FB_ASSIGN_OR_RETURN(const JaxOutcome outcome,
                               p->Run(batch, learner::HyperParameters(step_options.optimizer,
                                                                      kLearningRate, ++updates)));
           const double seconds = Seconds(Now() - start);
           if (updates == 1) {
             FB_RETURN_IF_ERROR(CheckSame("loss", first.sums.loss(), outcome.loss));
             FB_RETURN_IF_ERROR(CheckSame("gradient norm", first.grad_norm, outcome.grad_norm));
           }
           return seconds;
         }});
    peers.push_back(std::move(peer));
  }

  const size_t torch_at = sides.size();
  std::vector<std::string> torch_variants = TorchStep::Variants();
  if (options.quick && !torch_variants.empty()) torch_variants.resize(1);
  if (torch_variants.empty()) options.Say("no torch: bench/peers/setup_torch.sh makes it");
  std::vector<std::unique_ptr<TorchStep>> torches;
  std::string torch_version;
  for (const std::string& variant : torch_variants) {
    options.Say("starting torch, " + variant);
    FB_ASSIGN_OR_RETURN(auto peer, TorchStep::Create(variant, smol.tensors, batch));
    sides.push_back(
        {"torch " + variant, [&, p = peer.get(), updates = 0]() mutable -> Result<double> {
           FB_ASSIGN_OR_RETURN(const TorchOutcome outcome, p->Run(kLearningRate));
           if (++updates == 1) {
             FB_RETURN_IF_ERROR(CheckSame("loss", first.sums.loss(), outcome.loss));
             FB_RETURN_IF_ERROR(CheckSame("gradient norm", first.grad_norm, outcome.grad_norm));
           }
           torch_version = outcome.version;
           return outcome.seconds;
         }});
    torches.push_back(std::move(peer));
  }

  options.Say("measuring");
  FB_ASSIGN_OR_RETURN(const std::vector<SideTimes> times, Interleave(sides, options.quick ? 3 : 5));

  nlohmann::ordered_json fields;
  fields["tokens_per_s"] = static_cast<double>(kShape.tokens()) / times[0].seconds.median;
  fields["vs_jax"] = nullptr;
  fields["vs_torch"] = nullptr;
  const auto specs = smol.model->Params(step_options.gradient.layout);
  FB_ASSIGN_OR_RETURN(const xla::Program gradient,
                      learner::TraceGradient(*smol.model, step_options.gradient, kShape));
  FB_ASSIGN_OR_RETURN(const xla::Program apply, learner::TraceApply(specs, step_options.optimizer));
  FB_RETURN_IF_ERROR(Dump(options.dump, gradient));
  FB_RETURN_IF_ERROR(Dump(options.dump, apply));
  FB_ASSIGN_OR_RETURN(fields["peak_bytes"], PeakBytes(*client, gradient, apply));
  fields["step_seconds"] = ToJson(times[0].seconds);
  fields["step_cpu_seconds"] = ToJson(times[0].cpu_seconds);
  if (!peers.empty()) {
    const size_t fastest = Fastest(times, 1, torch_at);
    fields["vs_jax"] = times[fastest].seconds.median / times[0].seconds.median;
    fields["vs_jax_cpu_seconds"] = times[fastest].cpu_seconds.median / times[0].cpu_seconds.median;
    auto& jax = fields["jax"];
    jax["version"] = jax_version;
    jax["fastest"] = variants[fastest - 1];
    for (size_t i = 0; i < peers.size(); ++i) {
      auto& peer = jax[variants[i]];
      peer["step_seconds"] = ToJson(times[i + 1].seconds);
      peer["step_cpu_seconds"] = ToJson(times[i + 1].cpu_seconds);
      FB_ASSIGN_OR_RETURN(peer["peak_bytes"], peers[i]->PeakBytes());
    }
  }
  if (!torches.empty()) {
    const size_t fastest = Fastest(times, torch_at, times.size());
    fields["vs_torch"] = times[fastest].seconds.median / times[0].seconds.median;
    auto& torch = fields["torch"];
    torch["version"] = torch_version;
    torch["fastest"] = torch_variants[fastest - torch_at];
    for (size_t i = 0; i < torches.size(); ++i) {
      torch[torch_variants[i]]["step_seconds"] = ToJson(times[torch_at + i].seconds);
    }
  }
  // A run needs the memory of all these.
  sides.clear();
  step.reset();
  peers.clear();
  torches.clear();
  FB_ASSIGN_OR_RETURN(auto dispatch, MeasureDispatchGap({.steps = options.quick ? 2 : 5,
                                                         .checkpoint = !options.quick},
                                                        options, smol, *client));
  fields["dispatch_gap_fraction"] = dispatch["dispatch_gap_fraction"];
  fields["dispatch"] = std::move(dispatch);
  return fields;
}

}  // namespace forebay::bench
