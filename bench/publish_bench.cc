// The publish benchmark: see benchmarks.h.
//
// Sixteen streams of SmolLM2-135M decode without end. New weights (another value in every element,
// as after an optimizer step) are published from host memory; the clock runs until a stream gets
// its first token from them. The stall is how much longer than usual a stream waits for a token
// around the moment that the weights are taken: the longest wait that ends with a token of the new
// version, less the median wait while the upload is under way, so that it holds what the engine
// itself stops for and nothing of the two programs that share the processors. Once with the engine
// in this process, and once over a socket, with engine and streams in another process.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/publish_server.h"
#include "bench/publish_streams.h"
#include "bench/recovery_process.h"
#include "bench/smollm2.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::bench {
namespace {

using rollout::Engine;

constexpr auto kServerStart = std::chrono::minutes(3);

bool Everything(const std::string&) { return true; }
// Where adapters of LoRA usually are.
bool QueriesAndValues(const std::string& name) {
  return name.find("q_proj") != std::string::npos || name.find("v_proj") != std::string::npos;
}

// The same weights with every element of these tensors a little different.
std::shared_ptr<const weights::Snapshot> Stepped(const weights::TensorMap& tensors,
                                                 int64_t policy_version,
                                                 bool (*changes)(const std::string&)) {
  auto snapshot = std::make_shared<weights::Snapshot>();
  snapshot->policy_version = policy_version;
  const float factor = 1.0F + 1e-4F * static_cast<float>(policy_version);
  for (const auto& [name, tensor] : tensors) {
    if (!changes(name)) {
      snapshot->tensors[name] = tensor;
      continue;
    }
    std::span<std::byte> bytes;
    weights::HostTensor stepped = weights::HostTensor::Allocate(tensor.shape(), &bytes);
    const std::span<const float> from = tensor.as<float>();
    std::transform(from.begin(), from.end(), reinterpret_cast<float*>(bytes.data()),
                   [&](float x) { return x * factor; });
    snapshot->tensors[name] = stepped;
  }
  return snapshot;
}

using TokensSoFar = std::function<std::vector<Token>()>;

Status WaitForVersion(const TokensSoFar& tokens_so_far, int64_t version, size_t tokens_after) {
  const TimePoint deadline = Now() + std::chrono::minutes(2);
  while (Now() < deadline) {
    const std::vector<Token> tokens = tokens_so_far();
    const auto of_version = std::count_if(tokens.begin(), tokens.end(), [&](const Token& token) {
      return token.policy_version == version;
    });
    if (static_cast<size_t>(of_version) >= tokens_after) return OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return DeadlineExceeded(fmt::format("no token of version {} came in two minutes", version));
}

struct Timings {
  std::vector<double> taken, stalls, steps;
  int64_t continued = 0;
};

Status PublishAndMeasure(Engine& engine, std::shared_ptr<const weights::Snapshot> snapshot,
                         const TokensSoFar& tokens, Timings* timings) {
  const int64_t version = snapshot->policy_version;
  const TimePoint published = Now();
  std::promise<Status> promise;
  engine.Publish(std::move(snapshot), [&](Status status) { promise.set_value(std::move(status)); });
  FB_RETURN_IF_ERROR(promise.get_future().get());
  FB_RETURN_IF_ERROR(WaitForVersion(tokens, version, 5));
  const Timing timing = Measure(tokens(), published, version);
  timings->taken.push_back(timing.taken_ms);
  timings->stalls.push_back(timing.stall_ms);
  timings->steps.push_back(timing.step_ms);
  timings->continued += timing.continued ? 1 : 0;
  return OkStatus();
}

// The engine in this process.
Status InProcess(const BenchOptions& options, const SmolLm2& smol, int repeats, Timings* timings,
                 std::vector<double>* swaps, int64_t* cut) {
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<xla::Client> client, MakeClient());
  FB_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      rollout::MakeXlaEngine({.slots = kPublishSlots, .context = kPublishContext}, *client,
                             smol.model, {.policy_version = 0, .tensors = smol.tensors}));
  Mutex mutex;
  std::vector<Token> seen;
  Streams streams(*engine, [&](const Token& token) {
    const MutexLock lock(mutex);
    seen.push_back(token);
  });
  const TokensSoFar tokens = [&] {
    const MutexLock lock(mutex);
    return seen;
  };
  Status status = WaitForVersion(tokens, 0, 20);
  for (int64_t version = 1; status.ok() && version <= repeats; ++version) {
    options.Say(fmt::format("publishing version {} of {}", version, repeats));
    status =
        PublishAndMeasure(*engine, Stepped(smol.tensors, version, Everything), tokens, timings);
    swaps->push_back(1e3 * engine->stats().publish_stall_last_s);
  }
  streams.Stop();
  engine->Shutdown();
  *cut = streams.cut();
  return status;
}

struct SocketFields {
  Timings timings;
  double fraction = 0, fraction_lora = 0;  // of the bytes, sent
  std::vector<double> taken_lora;
};

// The engine in a process of its own, on loopback.
Status OverSocket(const BenchOptions& options, const SmolLm2& smol, int repeats,
                  SocketFields* fields) {
  FB_ASSIGN_OR_RETURN(RoleProcess server, RoleProcess::Start({}, kPublishServerWord));
  FB_ASSIGN_OR_RETURN(const std::string url, server.ReadLine(Now() + kServerStart));
  std::vector<Token> seen;
  std::string unread;
  const TokensSoFar tokens = [&] {
    unread += server.TakeReport();
    const size_t end = unread.rfind('\n') + 1;  // 0 without a whole line
    std::istringstream lines(unread.substr(0, end));
    unread.erase(0, end);
    int64_t ns = 0;
    for (Token token; lines >> ns >> token.policy_version >> token.request;) {
      token.at = TimePoint(std::chrono::nanoseconds(ns));  // both clocks are the machine's
      seen.push_back(token);
    }
    return seen;
  };
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      rollout::MakeHttpEngine({.protocol = rollout::HttpEngineProtocol::kForebay,
                                               .servers = {url},
                                               .vocab_size = smol.model->config().vocab_size,
                                               .context = kPublishContext,
                                               .reload = true},
                                              {.policy_version = 0, .tensors = smol.tensors}));
  FB_RETURN_IF_ERROR(WaitForVersion(tokens, 0, 20));
  const auto fraction = [&](const rollout::EngineStats& before) {
    const rollout::EngineStats after = engine->stats();
    return static_cast<double>(after.published_bytes_sent - before.published_bytes_sent) /
           static_cast<double>(after.published_bytes - before.published_bytes);
  };
  int64_t version = 0;
  rollout::EngineStats before = engine->stats();
  for (int i = 0; i < repeats; ++i) {
    options.Say(fmt::format("publishing version {} of {} over a socket", ++version, repeats));
    FB_RETURN_IF_ERROR(PublishAndMeasure(*engine, Stepped(smol.tensors, version, Everything),
                                         tokens, &fields->timings));
  }
  fields->fraction = fraction(before);
  // What differs from the last version is what does from the adapters' base after the first one.
  Timings lora;
  for (int i = 0; i <= repeats; ++i) {
    if (i == 1) lora = {};
    if (i == 1) before = engine->stats();
    FB_RETURN_IF_ERROR(PublishAndMeasure(
        *engine, Stepped(smol.tensors, ++version, QueriesAndValues), tokens, &lora));
  }
  fields->fraction_lora = fraction(before);
  fields->taken_lora = lora.taken;
  engine->Shutdown();
  return server.Kill();
}

}  // namespace

Result<nlohmann::ordered_json> PublishBench(const BenchOptions& options) {
  const int repeats = options.quick ? 3 : 9;
  FB_ASSIGN_OR_RETURN(const SmolLm2 smol, LoadSmolLm2());
  Timings here;
  std::vector<double> swaps;
  int64_t cut = 0;
  FB_RETURN_IF_ERROR(InProcess(options, smol, repeats, &here, &swaps, &cut));
  SocketFields there;
  FB_RETURN_IF_ERROR(OverSocket(options, smol, repeats, &there));

  const auto median = [](const std::vector<double>& values) { return Summarize(values).median; };
  nlohmann::ordered_json fields;
  fields["ms_in_process"] = median(here.taken);
  fields["ms_socket"] = median(there.timings.taken);
  fields["engine_stall_ms"] = median(here.stalls);
  fields["engine_stall_ms_socket"] = median(there.timings.stalls);
  fields["decode_step_ms"] = median(here.steps);
  fields["decode_step_ms_socket"] = median(there.timings.steps);
  fields["stall_in_decode_steps"] = median(here.stalls) / median(here.steps);
  fields["swap_ms"] = median(swaps);
  // Every element is other after an optimizer step, and all of them travel; of merged adapters of
  // queries and values only those matrices do.
  fields["bytes_sent_fraction"] = there.fraction;
  fields["bytes_sent_fraction_lora"] = there.fraction_lora;
  fields["ms_socket_lora"] = median(there.taken_lora);
  fields["requests_cut"] = cut;
  // One may end by chance just then; if the engine drained, all would.
  fields["publishes"] = repeats;
  fields["in_the_middle_of_a_sequence"] = here.continued;
  fields["in_the_middle_of_a_sequence_socket"] = there.timings.continued;
  fields["generation_drained"] = here.continued == 0 || there.timings.continued == 0;
  fields["spread"] = {{"ms_in_process", ToJson(Summarize(here.taken))},
                      {"ms_socket", ToJson(Summarize(there.timings.taken))},
                      {"engine_stall_ms", ToJson(Summarize(here.stalls))},
                      {"engine_stall_ms_socket", ToJson(Summarize(there.timings.stalls))},
                      {"decode_step_ms", ToJson(Summarize(here.steps))}};
  return fields;
}

}  // namespace forebay::bench
