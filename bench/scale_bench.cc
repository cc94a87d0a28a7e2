// The scale benchmark: see benchmarks.h.
//
// Each row compares the same code on less and on more work, interleaved, and gives the exponent
// with which the cost grows: log(cost ratio) / log(work ratio). 1 is linear, 0 is no growth. Cost
// is the processors' time of the whole process (all threads), which other work on the machine
// disturbs less than the clock; of `layers` it is the clock too, for that is what a user waits for.
//
// - actors: 1,000 and 10,000 episodes that wait for an environment of two seconds a step, one after
//   the other; cost: processor seconds a second. 1: an episode costs the same in a larger pool.
// - episode_tokens: a step over 8 rows, each one episode of 512 and of 2,048 tokens. Between 1 (the
//   products) and 2 (attention).
// - model: a step of a model and of one with four times the parameters.
// - layers: tracing and compiling both programs of a step for 8 and 80 layers of the same width,
//   stacked, as `forebay plan` and meshes have them. 0: 80 layers compile like one.
// - devices: the same step on 1, 2, 4 and 8 virtual devices (fsdp), which share these processors.
//   0: splitting adds no work.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"
#include "forebay/learner/train_programs.h"
#include "forebay/learner/train_step.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/sharding.h"

namespace forebay::bench {
namespace {

using learner::BucketShape;
using learner::MicroBatch;

constexpr double kLearningRate = 1e-4;
constexpr int64_t kRows = 8;  // divides over every number of devices here

// Rows of one episode each.
MicroBatch MakeBatch(BucketShape shape) {
  Rng rng(1);
  const auto length = static_cast<size_t>(shape.length);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(weights::kTinyVocabSize));
  const std::vector<uint8_t> mask(length, 1);
  const std::vector<float> logprobs(length, -5.5F);
  const learner::TrainSequence sequence = {.tokens = tokens,
                                           .loss_mask = mask,
                                           .rollout_logprobs = logprobs,
                                           .advantage = 0.5,
                                           .token_weight = 1e-4};
  std::vector<learner::Row> rows;
  rows.reserve(static_cast<size_t>(shape.rows));
  for (int32_t i = 0; i < shape.rows; ++i) rows.push_back({{i, 0}});
  return learner::FillMicroBatch(
      rows, std::vector<learner::TrainSequence>(static_cast<size_t>(shape.rows), sequence), shape);
}

struct StepSide {
  weights::TinyModelOptions model;
  BucketShape shape;
  int64_t devices = 1;
};

// A train step that owns all it needs.
class Step {
 public:
  static Result<std::unique_ptr<Step>> Create(const StepSide& side) {
    auto step = std::make_unique<Step>();
    FB_ASSIGN_OR_RETURN(step->model_,
                        models::Model::Create(weights::TinyModelFiles(side.model).config_json));
    FB_ASSIGN_OR_RETURN(const std::string plugin, xla::FindPlugin(""));
    FB_ASSIGN_OR_RETURN(step->client_,
                        xla::Client::Create({.plugin_path = plugin,
                                             .cpu_device_count = static_cast<int>(side.devices)}));
    learner::TrainStepOptions options;
    options.gradient.entropy = false;
    options.gradient.layout = models::LayerLayout::kStacked;
    options.buckets = {side.shape};
    if (side.devices > 1) {
      FB_ASSIGN_OR_RETURN(options.gradient.mesh,
                          xla::Mesh::Create({.fsdp = side.devices}, side.devices));
    }
    learner::TrainState state;
    FB_ASSIGN_OR_RETURN(state.params,
                        step->model_->ToCheckpoint(models::RandomWeights(*step->model_, 1),
                                                   models::LayerLayout::kPerLayer));
    FB_ASSIGN_OR_RETURN(step->step_,
                        learner::TrainStep::Create(*step->client_, *step->model_, options, state));
    step->batch_ = MakeBatch(side.shape);
    return step;
  }
  Result<double> Run() {
    const TimePoint start = Now();
    FB_RETURN_IF_ERROR(step_->Run({&batch_, 1}, kLearningRate).status());
    return Seconds(Now() - start);
  }

 private:
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<xla::Client> client_;
  std::unique_ptr<learner::TrainStep> step_;  // uses both
  MicroBatch batch_;
};

// work and cost of one side.
struct Point {
  double work = 0;
  Spread cost;
};

nlohmann::ordered_json Row(const char* work, const char* cost, std::span<const Point> points) {
  const Point& first = points.front();
  const Point& last = points.back();
  nlohmann::ordered_json row;
  row["growth_exponent"] =
      std::log(last.cost.median / first.cost.median) / std::log(last.work / first.work);
  for (const Point& point : points) {
    row[work].push_back(point.work);
    row[cost].push_back(ToJson(point.cost));
  }
  return row;
}

// The row of steps that differ in `work`.
Result<nlohmann::ordered_json> StepRow(const char* work, std::span<const StepSide> sides,
                                       std::span<const double> amounts, int repeats) {
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<Side> runs;
  for (size_t i = 0; i < sides.size(); ++i) {
    FB_ASSIGN_OR_RETURN(steps.emplace_back(), Step::Create(sides[i]));
    runs.push_back({fmt::format("{} {}", work, amounts[i]), [&, i] { return steps[i]->Run(); }});
  }
  FB_ASSIGN_OR_RETURN(const auto times, Interleave(runs, repeats));
  std::vector<Point> points;
  points.reserve(sides.size());
  for (size_t i = 0; i < sides.size(); ++i) points.push_back({amounts[i], times[i].cpu_seconds});
  nlohmann::ordered_json row = Row(work, "cpu_seconds", points);
  for (const SideTimes& t : times) row["seconds"].push_back(ToJson(t.seconds));
  return row;
}

double Parameters(const weights::TinyModelOptions& options) {
  const auto model = models::Model::Create(weights::TinyModelFiles(options).config_json).value();
  double count = 0;
  for (const models::ParamSpec& spec : model->Params(models::LayerLayout::kStacked)) {
    count += static_cast<double>(spec.shape.elements());
  }
  return count;
}

// Traces and compiles both programs of a step, without any cache.
Result<double> CompileStep(const weights::TinyModelOptions& options, xla::Client& client) {
  FB_ASSIGN_OR_RETURN(const auto model,
                      models::Model::Create(weights::TinyModelFiles(options).config_json));
  const learner::GradientProgramOptions gradient = {.layout = models::LayerLayout::kStacked,
                                                    .remat = true};
  const TimePoint start = Now();
  FB_ASSIGN_OR_RETURN(const xla::Program step,
                      learner::TraceGradient(*model, gradient, {.rows = 2, .length = 512}));
  FB_RETURN_IF_ERROR(client.Compile(step).status());
  FB_ASSIGN_OR_RETURN(const xla::Program apply,
                      learner::TraceApply(model->Params(gradient.layout), {}));
  FB_RETURN_IF_ERROR(client.Compile(apply).status());
  return Seconds(Now() - start);
}

Result<nlohmann::ordered_json> LayersRow(int repeats) {
  // One program in memory: each compilation drops the one before, so that all are real.
  FB_ASSIGN_OR_RETURN(const std::string plugin, xla::FindPlugin(""));
  FB_ASSIGN_OR_RETURN(const auto client,
                      xla::Client::Create({.plugin_path = plugin, .cached_programs_max = 1}));
  const std::vector<int64_t> layers = {8, 80};
  std::vector<Side> sides;
  sides.reserve(layers.size());
  for (const int64_t count : layers) {
    sides.push_back({fmt::format("{} layers", count),
                     [&client, count] { return CompileStep({.layers = count}, *client); }});
  }
  FB_ASSIGN_OR_RETURN(const auto times, Interleave(sides, repeats));
  std::vector<Point> points;
  points.reserve(sides.size());
  for (size_t i = 0; i < sides.size(); ++i) {
    points.push_back({static_cast<double>(layers[i]), times[i].seconds});
  }
  nlohmann::ordered_json row = Row("layers", "compile_seconds", points);
  row["compile_ratio"] = times[1].seconds.median / times[0].seconds.median;
  for (const SideTimes& t : times) row["compile_cpu_seconds"].push_back(ToJson(t.cpu_seconds));
  return row;
}

Result<nlohmann::ordered_json> ActorsRow(const BenchOptions& options) {
  std::vector<Point> points;
  nlohmann::ordered_json wakeups, lost;
  for (const int64_t actors : {1'000, 10'000}) {
    FB_ASSIGN_OR_RETURN(const auto fields, MeasureActors(actors, options.quick ? 3 : 20, options));
    points.push_back(
        {static_cast<double>(actors), Summarize({fields.at("cpu_seconds_per_s").get<double>()})});
    wakeups.push_back(fields.at("wakeup_p99_ms"));
    lost.push_back(fields.at("lost"));
  }
  nlohmann::ordered_json row = Row("actors", "cpu_seconds_per_s", points);
  row["wakeup_p99_ms"] = wakeups;
  row["lost"] = lost;
  return row;
}

}  // namespace

Result<nlohmann::ordered_json> ScaleBench(const BenchOptions& options) {
  const int repeats = options.quick ? 3 : 5;
  const weights::TinyModelOptions base = {.layers = 2,
                                          .width = 128,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .ff_width = 512,
                                          .context_tokens = 2048};
  weights::TinyModelOptions larger = base;
  larger.width = 256;
  larger.ff_width = 1024;
  nlohmann::ordered_json fields;
  options.Say("layers");
  FB_ASSIGN_OR_RETURN(fields["layers"], LayersRow(repeats));
  options.Say("tokens of an episode");
  FB_ASSIGN_OR_RETURN(fields["episode_tokens"],
                      StepRow("tokens",
                              std::vector<StepSide>{{.model = base, .shape = {kRows, 512}},
                                                    {.model = base, .shape = {kRows, 2048}}},
                              std::vector<double>{512, 2048}, repeats));
  options.Say("model");
  FB_ASSIGN_OR_RETURN(fields["model"],
                      StepRow("parameters",
                              std::vector<StepSide>{{.model = base, .shape = {kRows, 512}},
                                                    {.model = larger, .shape = {kRows, 512}}},
                              std::vector<double>{Parameters(base), Parameters(larger)}, repeats));
  options.Say("devices");
  std::vector<StepSide> meshes;
  const std::vector<double> devices = {1, 2, 4, 8};
  meshes.reserve(devices.size());
  for (const double count : devices) {
    meshes.push_back(
        {.model = base, .shape = {kRows, 512}, .devices = static_cast<int64_t>(count)});
  }
  FB_ASSIGN_OR_RETURN(fields["devices"], StepRow("devices", meshes, devices, repeats));
  FB_ASSIGN_OR_RETURN(fields["actors"], ActorsRow(options));
  fields["load_average"] = LoadAverage();
  return fields;
}

}  // namespace forebay::bench
