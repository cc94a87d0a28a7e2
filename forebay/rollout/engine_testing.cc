#include "forebay/rollout/engine_testing.h"

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
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"

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
