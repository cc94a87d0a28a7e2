// What the tests of the engine share: the golden Llama, requests that are waited for, and a client
// that fails on demand.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::rollout {

// tests/goldens/parity/llama under `source_dir`: a random model with vocabulary 512 and context
// 256.
struct GoldenLlama {
  std::shared_ptr<const models::Model> model;
  weights::TensorMap checkpoint, reference;
};
GoldenLlama LoadGoldenLlama(const std::string& source_dir);
// Of this source tree; loaded once.
const GoldenLlama& Golden();

std::vector<int32_t> RandomPrompt(uint64_t seed, uint64_t length);
// 4 slots, context 128 in two buckets, two chunk sizes.
XlaEngineOptions SmallOptions();
// An engine with the golden weights as version 0, on the test program's client or another.
std::unique_ptr<Engine> MakeEngine(const XlaEngineOptions& options);
std::unique_ptr<Engine> MakeEngine(const XlaEngineOptions& options, xla::Client& client);

// The tiny model of weights/tiny_model.h with random weights, and its tokenizer: one token a byte.
struct TinyModel {
  std::shared_ptr<const models::Model> model;
  weights::TensorMap checkpoint;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
};
TinyModel MakeTinyModel(int64_t context);
// An engine with these weights as version 0 and this tokenizer, on the test program's client.
std::unique_ptr<Engine> MakeEngine(const TinyModel& tiny, XlaEngineOptions options);

// Other weights of the same model, which sample differently.
std::shared_ptr<const weights::Snapshot> OtherWeights(const GoldenLlama& golden, uint64_t seed,
                                                      int64_t policy_version);

std::future<Result<GenerateResult>> Ask(Engine& engine, GenerateRequest request);
// The answer; a failure of the test program if none comes in two minutes.
Result<GenerateResult> Get(std::future<Result<GenerateResult>> future);
inline Result<GenerateResult> Generate(Engine& engine, GenerateRequest request) {
  return Get(Ask(engine, std::move(request)));
}
// Publishes and waits.
Status PublishAndWait(Engine& engine, std::shared_ptr<const weights::Snapshot> snapshot);

// Passes on to a real client; its programs fail once `fail` is set.
class FailingClient final : public xla::Client {
 public:
  explicit FailingClient(xla::Client& real) : real_(real) {}
  std::atomic<bool>& fail() { return *fail_; }

  std::string platform() const override { return real_.platform(); }
  std::string platform_version() const override { return real_.platform_version(); }
  std::pair<int, int> api_version() const override { return real_.api_version(); }
  std::vector<xla::DeviceInfo> devices() const override { return real_.devices(); }
  bool calls_host_kernels() const override { return real_.calls_host_kernels(); }
  Result<xla::Buffer> FromHost(std::span<const std::byte> data, const xla::Shape& shape,
                               int device) override {
    return real_.FromHost(data, shape, device);
  }
  Result<xla::Buffer> Copy(const xla::Buffer& buffer) override { return real_.Copy(buffer); }
  Result<std::shared_ptr<xla::Executable>> Compile(
      const xla::Program& program, const std::map<std::string, std::string>& xla_flags) override;
  xla::CompileCounters counters() const override { return real_.counters(); }
  int64_t live_buffers() const override { return real_.live_buffers(); }

 private:
  xla::Client& real_;
  std::shared_ptr<std::atomic<bool>> fail_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace forebay::rollout
