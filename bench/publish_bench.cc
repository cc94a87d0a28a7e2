// The publish benchmark: see benchmarks.h.
//
// Sixteen streams of SmolLM2-135M decode without end. New weights (another value in every element,
// as after an optimizer step) are published from host memory; the clock runs until a stream gets
// its first token from them. The stall is how much longer than usual a stream waits for a token
// around the moment that the weights are taken: the longest wait that ends with a token of the new
// version, less the median wait while the upload is under way, so that it holds what the engine
// itself stops for and nothing of the two programs that share the processors.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/smollm2.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::bench {
namespace {

using rollout::Engine;
using rollout::GenerateRequest;
using rollout::GenerateResult;
using rollout::TokenEvent;

constexpr int64_t kSlots = 16, kContext = 512;
constexpr int32_t kNewTokens = 400;

struct Token {
  TimePoint at;
  int64_t policy_version;
  uint64_t request;
};

// Keeps every slot busy, and the times of the tokens of one stream at a time.
class Streams {
 public:
  explicit Streams(Engine& engine) : engine_(engine) {
    for (int64_t i = 0; i < kSlots; ++i) Start(i);
  }

  std::vector<Token> tokens() const {
    MutexLock lock(mutex_);
    return tokens_;
  }
  // Ends with the requests that run; call after Engine::Shutdown.
  int64_t cut() const {
    MutexLock lock(mutex_);
    return cut_;
  }
  void Stop() {
    MutexLock lock(mutex_);
    stopping_ = true;
  }

 private:
  void Start(int64_t stream) {
    GenerateRequest request{.prompt = {1, 2, static_cast<int32_t>(stream)},
                            // Unequal, so that streams do not end together.
                            .new_tokens_max = kNewTokens - static_cast<int32_t>(7 * stream),
                            .seed = ++seed_};
    if (stream == 0) {
      request.on_token = [this](const TokenEvent& event) {
        MutexLock lock(mutex_);
        tokens_.push_back({Now(), event.policy_version, event.request});
      };
    }
    engine_.Generate(std::move(request), [this, stream](const Result<GenerateResult>& result) {
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
        if (!result.ok()) ++cut_;
        if (!result.ok()) return;
      }
      Start(stream);
    });
  }

  Engine& engine_;
  uint64_t seed_ = 0;  // the engine's thread, after the constructor
  mutable Mutex mutex_;
  std::vector<Token> tokens_ FB_GUARDED_BY(mutex_);
  int64_t cut_ FB_GUARDED_BY(mutex_) = 0;  // requests that failed
  bool stopping_ FB_GUARDED_BY(mutex_) = false;
};

// The same weights with every element a little different.
std::shared_ptr<const weights::Snapshot> Stepped(const weights::TensorMap& tensors,
                                                 int64_t policy_version) {
  auto snapshot = std::make_shared<weights::Snapshot>();
  snapshot->policy_version = policy_version;
  const float factor = 1.0F + 1e-4F * static_cast<float>(policy_version);
  for (const auto& [name, tensor] : tensors) {
    std::span<std::byte> bytes;
    weights::HostTensor stepped = weights::HostTensor::Allocate(tensor.shape(), &bytes);
    const std::span<const float> from = tensor.as<float>();
    std::transform(from.begin(), from.end(), reinterpret_cast<float*>(bytes.data()),
                   [&](float x) { return x * factor; });
    snapshot->tensors[name] = stepped;
  }
  return snapshot;
}

struct Timing {
  double taken_ms = 0;  // until a stream got its first token of the new version
  double stall_ms = 0, step_ms = 0;
  bool continued = false;  // in the middle of a sequence
};

Timing Measure(const std::vector<Token>& tokens, TimePoint published, int64_t version) {
  Timing out;
  std::vector<double> usual;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const double wait = 1e3 * Seconds(tokens[i].at - tokens[i - 1].at);
    if (tokens[i].policy_version == version) {
      out.continued = tokens[i].request == tokens[i - 1].request;
      out.taken_ms = 1e3 * Seconds(tokens[i].at - published);
      // The token of the new version, or one beside it: a swap may fall on either side of a step.
      double longest = wait;
      if (i + 1 < tokens.size()) {
        longest = std::max(longest, 1e3 * Seconds(tokens[i + 1].at - tokens[i].at));
      }
      if (usual.empty()) usual.push_back(wait);
      out.step_ms = Summarize(usual).median;
      out.stall_ms = std::max(0.0, longest - out.step_ms);
      return out;
    }
    if (tokens[i - 1].at >= published) usual.push_back(wait);
  }
  return out;
}

Status WaitForVersion(const Streams& streams, int64_t version, size_t tokens_after) {
  const TimePoint deadline = Now() + std::chrono::minutes(2);
  while (Now() < deadline) {
    const std::vector<Token> tokens = streams.tokens();
    const auto of_version = std::count_if(tokens.begin(), tokens.end(), [&](const Token& token) {
      return token.policy_version == version;
    });
    if (static_cast<size_t>(of_version) >= tokens_after) return OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return DeadlineExceeded(fmt::format("no token of version {} came in two minutes", version));
}

}  // namespace

Result<nlohmann::ordered_json> PublishBench(const BenchOptions& options) {
  const int repeats = options.quick ? 3 : 9;
  FB_ASSIGN_OR_RETURN(const SmolLm2 smol, LoadSmolLm2());
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<xla::Client> client, MakeClient());
  FB_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      rollout::MakeXlaEngine({.slots = kSlots, .context = kContext}, *client, smol.model,
                             {.policy_version = 0, .tensors = smol.tensors}));
  Streams streams(*engine);
  FB_RETURN_IF_ERROR(WaitForVersion(streams, 0, 20));
  std::vector<double> taken, stalls, steps, swaps;
  int64_t continued = 0;
  for (int64_t version = 1; version <= repeats; ++version) {
    options.Say(fmt::format("publishing version {} of {}", version, repeats));
    const auto snapshot = Stepped(smol.tensors, version);
    const TimePoint published = Now();
    std::promise<Status> promise;
    engine->Publish(snapshot, [&](Status status) { promise.set_value(std::move(status)); });
    FB_RETURN_IF_ERROR(promise.get_future().get());
    FB_RETURN_IF_ERROR(WaitForVersion(streams, version, 5));
    const Timing timing = Measure(streams.tokens(), published, version);
    taken.push_back(timing.taken_ms);
    stalls.push_back(timing.stall_ms);
    steps.push_back(timing.step_ms);
    continued += timing.continued ? 1 : 0;
    swaps.push_back(1e3 * engine->stats().publish_stall_last_s);
  }
  streams.Stop();
  engine->Shutdown();

  nlohmann::ordered_json fields;
  fields["ms_in_process"] = Summarize(taken).median;
  fields["ms_socket"] = nullptr;  // no engine of another process takes weights over a socket yet
  fields["engine_stall_ms"] = Summarize(stalls).median;
  fields["decode_step_ms"] = Summarize(steps).median;
  fields["stall_in_decode_steps"] = Summarize(stalls).median / Summarize(steps).median;
  fields["swap_ms"] = Summarize(swaps).median;
  // Every element is other after an optimizer step, and all of them travel.
  fields["bytes_sent_fraction"] = 1.0;
  fields["requests_cut"] = streams.cut();
  // One may end by chance just then; if the engine drained, all would.
  fields["publishes"] = repeats;
  fields["in_the_middle_of_a_sequence"] = continued;
  fields["generation_drained"] = continued == 0;
  fields["spread"] = {{"ms_in_process", ToJson(Summarize(taken))},
                      {"engine_stall_ms", ToJson(Summarize(stalls))},
                      {"decode_step_ms", ToJson(Summarize(steps))}};
  return fields;
}

}  // namespace forebay::bench
