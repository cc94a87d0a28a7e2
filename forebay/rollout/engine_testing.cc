#include "forebay/rollout/engine_testing.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"

namespace forebay::rollout {
namespace {

constexpr auto kPatience = std::chrono::minutes(2);

class FailingExecutable final : public xla::Executable {
 public:
  FailingExecutable(std::shared_ptr<xla::Executable> real, std::shared_ptr<std::atomic<bool>> fail)
      : real_(std::move(real)), fail_(std::move(fail)) {}
  Result<std::vector<xla::Buffer>> Execute(std::span<xla::Buffer* const> arguments) override {
    if (fail_->load()) return Internal("the device fell off the bus");
    return real_->Execute(arguments);
  }
  const xla::Program& program() const override { return real_->program(); }
  Result<xla::MemoryStats> memory() const override { return real_->memory(); }
  std::map<std::string, double> cost() const override { return real_->cost(); }

 private:
  std::shared_ptr<xla::Executable> real_;
  std::shared_ptr<std::atomic<bool>> fail_;
};

}  // namespace

GoldenLlama LoadGoldenLlama(const std::string& source_dir) {
  const std::string folder = source_dir + "/tests/goldens/parity/llama/";
  GoldenLlama golden;
  golden.model = models::Model::Create(ReadFile(folder + "config.json").value()).value();
  golden.checkpoint = weights::ReadSafetensors(folder + "model.safetensors").value();
  golden.reference = weights::ReadSafetensors(folder + "reference.safetensors").value();
  return golden;
}

const GoldenLlama& Golden() {
  static const GoldenLlama golden = LoadGoldenLlama(FOREBAY_SOURCE_DIR);
  return golden;
}

std::vector<int32_t> RandomPrompt(uint64_t seed, uint64_t length) {
  Rng rng(seed);
  std::vector<int32_t> out;
  for (uint64_t i = 0; i < length; ++i) {
    out.push_back(static_cast<int32_t>(
        rng.Below(static_cast<uint64_t>(Golden().model->config().vocab_size))));
  }
  return out;
}

XlaEngineOptions SmallOptions() {
  return {.slots = 4, .context = 128, .context_buckets = {64, 128}, .prefill_chunks = {8, 32}};
}

std::unique_ptr<Engine> MakeEngine(const XlaEngineOptions& options) {
  return MakeEngine(options, xla::TestClient());
}

std::unique_ptr<Engine> MakeEngine(const XlaEngineOptions& options, xla::Client& client) {
  auto engine = MakeXlaEngine(options, client, Golden().model,
                              {.policy_version = 0, .tensors = Golden().checkpoint});
  FB_CHECK(engine.ok(), engine.status().ToString());
  return *std::move(engine);
}

TinyModel MakeTinyModel(int64_t context) {
  const weights::ModelFiles files = weights::TinyModelFiles({.context_tokens = context});
  TinyModel tiny;
  tiny.model = models::Model::Create(files.config_json).value();
  constexpr auto kLayout = models::LayerLayout::kPerLayer;
  tiny.checkpoint =
      tiny.model->ToCheckpoint(models::RandomWeights(*tiny.model, 1, 0.1), kLayout).value();
  tiny.tokenizer = tokenizer::Tokenizer::FromJson(files.tokenizer_json).value();
  return tiny;
}

std::unique_ptr<Engine> MakeEngine(const TinyModel& tiny, XlaEngineOptions options) {
  options.tokenizer = tiny.tokenizer;
  auto engine = MakeXlaEngine(options, xla::TestClient(), tiny.model,
                              {.policy_version = 0, .tensors = tiny.checkpoint});
  FB_CHECK(engine.ok(), engine.status().ToString());
  return *std::move(engine);
}

std::shared_ptr<const weights::Snapshot> OtherWeights(const GoldenLlama& golden, uint64_t seed,
                                                      int64_t policy_version) {
  auto snapshot = std::make_shared<weights::Snapshot>();
  snapshot->policy_version = policy_version;
  snapshot->tensors = golden.model
                          ->ToCheckpoint(models::RandomWeights(*golden.model, seed, 0.1),
                                         models::LayerLayout::kPerLayer)
                          .value();
  return snapshot;
}

std::future<Result<GenerateResult>> Ask(Engine& engine, GenerateRequest request) {
  auto promise = std::make_shared<std::promise<Result<GenerateResult>>>();
  engine.Generate(std::move(request), [promise](Result<GenerateResult> result) {
    promise->set_value(std::move(result));
  });
  return promise->get_future();
}

Result<GenerateResult> Get(std::future<Result<GenerateResult>> future) {
  FB_CHECK(future.wait_for(kPatience) == std::future_status::ready, "the engine did not answer");
  return future.get();
}

Status PublishAndWait(Engine& engine, std::shared_ptr<const weights::Snapshot> snapshot) {
  auto promise = std::make_shared<std::promise<Status>>();
  engine.Publish(std::move(snapshot),
                 [promise](Status status) { promise->set_value(std::move(status)); });
  std::future<Status> future = promise->get_future();
  FB_CHECK(future.wait_for(kPatience) == std::future_status::ready, "the weights were not taken");
  return future.get();
}

Result<std::shared_ptr<xla::Executable>> FailingClient::Compile(
    const xla::Program& program, const std::map<std::string, std::string>& xla_flags) {
  FB_ASSIGN_OR_RETURN(std::shared_ptr<xla::Executable> real, real_.Compile(program, xla_flags));
  return std::shared_ptr<xla::Executable>(
      std::make_shared<FailingExecutable>(std::move(real), fail_));
}

}  // namespace forebay::rollout
