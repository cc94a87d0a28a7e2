// The rollout benchmark: see benchmarks.h.
//
// Decoding: one group of S samples of a prompt of 64 tokens, all of the same length, so that S
// streams decode together from the first to the last step; its time is the decode span of the
// member that began last. Peers (bench/peers/setup_rollout.sh) do the same in turn with ours:
// vLLM's CPU build in f32 against our f32 and in bf16 against our bf16, sampling with
// log-probabilities as we do; llama.cpp with f16 weights, which samples nothing, against our bf16.
// Prompts: long ones, one token each. The gap: the sampled tokens go through the model as the
// learner runs it (packed rows, ChunkedLogprobs), and the largest difference counts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/buffer_scratch.h"
#include "bench/harness.h"
#include "bench/rollout_peer.h"
#include "bench/smollm2.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::bench {
namespace {

using rollout::GenerateRequest;
using rollout::GenerateResult;
using xla::DType;
using xla::Value;

constexpr int64_t kContext = 512, kPromptTokens = 64, kLongPromptTokens = 384;
constexpr std::array<int64_t, 3> kStreams = {1, 16, 32};
// Before each side: the other's threads may still spin for a while.
constexpr auto kPause = std::chrono::milliseconds(300);

std::vector<int32_t> RandomTokens(Rng& rng, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab))));
  }
  return tokens;
}

// Generates all requests at once and waits for them.
Result<std::vector<GenerateResult>> GenerateAll(rollout::Engine& engine,
                                                const std::vector<GenerateRequest>& requests) {
  using Promise = std::promise<Result<GenerateResult>>;
  std::vector<std::future<Result<GenerateResult>>> futures;
  for (const GenerateRequest& request : requests) {
    const auto promise = std::make_shared<Promise>();
    futures.push_back(promise->get_future());
    engine.Generate(request, [promise](Result<GenerateResult> result) {
      promise->set_value(std::move(result));
    });
  }
  std::vector<GenerateResult> results;
  Status status;
  for (auto& future : futures) {
    auto result = future.get();
    if (!result.ok()) {
      status = result.status();
    } else {
      results.push_back(*std::move(result));
    }
  }
  FB_RETURN_IF_ERROR(status);
  return results;
}

// One group: the same prompt, another seed each.
std::vector<GenerateRequest> Group(Rng& rng, int64_t streams, int64_t new_tokens, int64_t vocab) {
  const std::vector<int32_t> prompt = RandomTokens(rng, kPromptTokens, vocab);
  std::vector<GenerateRequest> requests;
  requests.reserve(static_cast<size_t>(streams));
  for (int64_t i = 0; i < streams; ++i) {
    requests.push_back(
        {.prompt = prompt, .new_tokens_max = static_cast<int32_t>(new_tokens), .seed = rng.Next()});
  }
  return requests;
}

// Log-probabilities of tokens 1, 2, ... of each row, as the learner computes them. [rows * T].
Result<xla::Program> LogprobProgram(const models::Model& model, int64_t rows, int64_t length) {
  xla::Graph graph("logprobs");
  models::ParamValues params;
  for (const auto& spec : model.Params(models::LayerLayout::kPerLayer)) {
    params[spec.name] = graph.Parameter(spec.shape, spec.name);
  }
  const xla::Shape shape{DType::kS32, {rows, length}};
  const Value tokens_BT = graph.Parameter(shape, "tokens");
  const Value targets_BT = graph.Parameter(shape, "targets");
  const Value one = xla::Constant(graph, 1, DType::kS32);
  const Value hidden_BTD = model.Hidden(params,
                                        {.tokens_BT = tokens_BT,
                                         .segments_BT = xla::BroadcastTo(one, {rows, length}),
                                         .positions_BT = xla::Iota(graph, shape, 1)},
                                        {});
  const int64_t count = rows * length;
  const std::array<Value, 1> logprobs = {
      models::ChunkedLogprobs(xla::Reshape(hidden_BTD, {count, model.config().width}),
                              model.Head(params), xla::Reshape(targets_BT, {count}), 1.0, 512)};
  return graph.Finish(logprobs);
}

// Largest |sampled - recomputed| over the sampled tokens of one group.
Result<double> LogprobGap(const SmolLm2& smol, xla::Client& client,
                          const std::vector<GenerateRequest>& requests,
                          const std::vector<GenerateResult>& results) {
  const auto rows = static_cast<int64_t>(results.size());
  const size_t length = requests[0].prompt.size() + results[0].tokens.size();
  std::vector<int32_t> tokens, targets;
  for (size_t i = 0; i < results.size(); ++i) {
    std::vector<int32_t> row = requests[i].prompt;
    row.insert(row.end(), results[i].tokens.begin(), results[i].tokens.end());
    row.resize(length);
    tokens.insert(tokens.end(), row.begin(), row.end());
    row.erase(row.begin());
    row.push_back(-1);
    targets.insert(targets.end(), row.begin(), row.end());
  }
  FB_ASSIGN_OR_RETURN(const xla::Program program,
                      LogprobProgram(*smol.model, rows, static_cast<int64_t>(length)));
  FB_ASSIGN_OR_RETURN(const auto executable, client.Compile(program));
  FB_ASSIGN_OR_RETURN(const auto params,
                      smol.model->FromCheckpoint(smol.tensors, models::LayerLayout::kPerLayer));
  std::vector<xla::Buffer> buffers;
  for (const auto& spec : smol.model->Params(models::LayerLayout::kPerLayer)) {
    FB_ASSIGN_OR_RETURN(auto buffer, client.FromHost(params.at(spec.name).bytes(), spec.shape));
    buffers.push_back(std::move(buffer));
  }
  const xla::Shape shape{DType::kS32, {rows, static_cast<int64_t>(length)}};
  for (const auto* values : {&tokens, &targets}) {
    FB_ASSIGN_OR_RETURN(auto buffer, client.FromVector(*values, shape));
    buffers.push_back(std::move(buffer));
  }
  std::vector<xla::Buffer*> arguments;
  arguments.reserve(buffers.size());
  for (xla::Buffer& buffer : buffers) arguments.push_back(&buffer);
  FB_ASSIGN_OR_RETURN(const auto outputs, executable->Execute(arguments));
  FB_ASSIGN_OR_RETURN(const std::vector<float> logprobs, outputs[0].ToVector<float>());

  double gap = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const size_t first = i * length + requests[i].prompt.size() - 1;
    for (size_t t = 0; t < results[i].logprobs.size(); ++t) {
      gap = std::max(gap, std::abs(static_cast<double>(results[i].logprobs[t]) -
                                   static_cast<double>(logprobs[first + t])));
    }
  }
  return gap;
}

// Tokens a second of one group, from the moment that its last member has its prompt (until then no
// step is run) to the end, which they share.
Result<double> DecodeRate(const std::vector<GenerateResult>& results) {
  int64_t together_us = results[0].decode_us, sampled = 0;
  for (const GenerateResult& result : results) {
    together_us = std::min(together_us, result.decode_us);
    sampled += static_cast<int64_t>(result.tokens.size());
  }
  if (together_us <= 0) return Internal("a group took no time to decode");
  return 1e6 * static_cast<double>(sampled) / static_cast<double>(together_us);
}

// A peer, or nothing where it is not installed or does not start.
struct PeerSide {
  std::string name;
  std::unique_ptr<RolloutPeer> peer;
  std::vector<double> rates = {};  // of the streams that are measured now
};

std::vector<PeerSide> StartPeers(const BenchOptions& options, const ScratchFolder& scratch) {
  const RolloutPeer::Model model{.gguf = SmolLm2Path(),
                                 .folder = scratch.path() + "/model",
                                 .streams_max = kStreams.back(),
                                 .context = kContext};
  std::vector<PeerSide> peers;
  const auto start = [&](const std::string& name, const std::vector<std::string>& arguments) {
    PeerSide& side = peers.emplace_back(PeerSide{.name = name, .peer = nullptr});
    if (arguments.empty()) return;
    options.Say("starting " + name);
    auto process = RolloutPeer::Start(
        arguments, std::string(FOREBAY_SOURCE_DIR) + "/runs/bench_" + name + ".log");
    if (process.ok()) {
      side.peer = *std::move(process);
    } else {
      options.Say(process.status().message());
    }
  };
  const bool wanted = !RolloutPeer::Vllm(model, "float32").empty();
  const bool written = wanted && WriteSmolLm2Folder(model.folder).ok();
  for (const auto& [name, dtype] :
       {std::pair{"vllm_cpu", "float32"}, {"vllm_cpu_bf16", "bfloat16"}}) {
    start(name, written ? RolloutPeer::Vllm(model, dtype) : std::vector<std::string>());
  }
  start("llamacpp_f16", RolloutPeer::LlamaCpp(model));
  return peers;
}

class Rollout {
 public:
  Rollout(const BenchOptions& options, SmolLm2 smol, std::unique_ptr<xla::Client> client,
          std::vector<PeerSide> peers)
      : options_(options),
        smol_(std::move(smol)),
        client_(std::move(client)),
        peers_(std::move(peers)) {}

  Status Measure(int64_t streams);
  nlohmann::ordered_json Fields() const;

 private:
  Result<std::unique_ptr<rollout::Engine>> MakeEngine(int64_t streams, DType dtype) {
    return rollout::MakeXlaEngine(
        {.slots = streams, .context = kContext, .weights_dtype = dtype, .cache_dtype = dtype},
        *client_, smol_.model, {.policy_version = 0, .tensors = smol_.tensors});
  }
  Result<double> Decode(rollout::Engine& engine, int64_t streams, bool check);
  Status MeasurePrompts(rollout::Engine& engine);

  const BenchOptions& options_;
  const SmolLm2 smol_;
  const std::unique_ptr<xla::Client> client_;
  std::vector<PeerSide> peers_;
  Rng rng_{2};
  double gap_ = 0;
  int64_t recompiles_ = 0;
  int64_t own_compiles_ = 0;  // for the gap, while these streams' engines stood
  nlohmann::ordered_json f32_, bf16_, ratios_, spreads_;
};

Result<double> Rollout::Decode(rollout::Engine& engine, int64_t streams, bool check) {
  std::this_thread::sleep_for(kPause);
  const int64_t vocab = smol_.model->config().vocab_size;
  const auto requests = Group(rng_, streams, options_.quick ? 32 : 96, vocab);
  FB_ASSIGN_OR_RETURN(const auto results, GenerateAll(engine, requests));
  if (check) {
    const int64_t before = client_->counters().compiled;
    FB_ASSIGN_OR_RETURN(const double gap, LogprobGap(smol_, *client_, requests, results));
    gap_ = std::max(gap_, gap);
    own_compiles_ = client_->counters().compiled - before;
  }
  return DecodeRate(results);
}

Status Rollout::MeasurePrompts(rollout::Engine& engine) {
  std::vector<double> rates;
  for (int round = 0; round < (options_.quick ? 2 : 5); ++round) {
    const std::vector<GenerateRequest> request = {
        {.prompt = RandomTokens(rng_, kLongPromptTokens, smol_.model->config().vocab_size),
         .new_tokens_max = 1}};
    FB_ASSIGN_OR_RETURN(const auto results, GenerateAll(engine, request));
    rates.push_back(1e6 * static_cast<double>(kLongPromptTokens) /
                    static_cast<double>(results[0].prefill_us));
  }
  f32_["prompt"] = Summarize(rates).median;
  spreads_["prompt"] = ToJson(Summarize(rates));
  return OkStatus();
}

Status Rollout::Measure(int64_t streams) {
  const std::string name = fmt::format("w{}", streams);
  options_.Say(fmt::format("{} streams", streams));
  FB_ASSIGN_OR_RETURN(const auto f32, MakeEngine(streams, DType::kF32));
  // XLA's CPU backend has no fast product of one bf16 row; where the engine brings its own, it has.
  std::unique_ptr<rollout::Engine> bf16;
  if (streams > 1 || xla::HostProductRows(*client_, DType::kBF16) > 0) {
    FB_ASSIGN_OR_RETURN(bf16, MakeEngine(streams, DType::kBF16));
  }
  std::vector<double> f32_rates, bf16_rates;
  for (PeerSide& side : peers_) side.rates.clear();
  for (int round = 0; round < (options_.quick ? 2 : 5); ++round) {
    FB_ASSIGN_OR_RETURN(f32_rates.emplace_back(), Decode(*f32, streams, round == 0));
    if (bf16 != nullptr) {
      FB_ASSIGN_OR_RETURN(bf16_rates.emplace_back(), Decode(*bf16, streams, false));
    }
    for (PeerSide& side : peers_) {
      if (side.peer == nullptr) continue;
      std::this_thread::sleep_for(kPause);
      FB_ASSIGN_OR_RETURN(side.rates.emplace_back(),
                          side.peer->Decode(streams, kPromptTokens, options_.quick ? 32 : 96));
    }
  }
  if (streams == 1) FB_RETURN_IF_ERROR(MeasurePrompts(*f32));
  const Spread ours = Summarize(f32_rates);
  f32_[name] = ours.median;
  spreads_[name] = ToJson(ours);
  bf16_[name] = nullptr;
  if (!bf16_rates.empty()) {
    bf16_[name] = Summarize(bf16_rates).median;
    spreads_["bf16." + name] = ToJson(Summarize(bf16_rates));
  }
  for (const PeerSide& side : peers_) {
    nlohmann::ordered_json& ratio = ratios_["vs_" + side.name][name];
    ratio = nullptr;
    if (side.rates.empty()) continue;
    const Spread theirs = Summarize(side.rates);
    // Like for like: f32 against f32, 16 bits against 16 bits where we have them.
    const bool narrow = side.name != "vllm_cpu" && bf16 != nullptr;
    ratio = (narrow ? bf16_ : f32_)[name].get<double>() / theirs.median;
    spreads_[side.name + "." + name] = ToJson(theirs);
  }
  for (const auto& engine : {f32.get(), bf16.get()}) {
    if (engine == nullptr) continue;
    recompiles_ += engine->stats().recompiles_after_warmup - own_compiles_;
    engine->Shutdown();
  }
  return OkStatus();
}

nlohmann::ordered_json Rollout::Fields() const {
  nlohmann::ordered_json fields;
  fields["tokens_per_s"] = f32_;
  fields["tokens_per_s_bf16"] = bf16_;
  for (const auto& [field, by_streams] : ratios_.items()) fields[field] = by_streams;
  fields["logprob_gap_max"] = gap_;
  fields["recompiles_after_warmup"] = recompiles_;
  fields["spread"] = spreads_;
  return fields;
}

}  // namespace

Result<nlohmann::ordered_json> RolloutBench(const BenchOptions& options) {
  FB_ASSIGN_OR_RETURN(SmolLm2 smol, LoadSmolLm2());
  FB_ASSIGN_OR_RETURN(std::unique_ptr<xla::Client> client, MakeClient());
  FB_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Create());
  Rollout rollout(options, std::move(smol), std::move(client), StartPeers(options, scratch));
  for (const int64_t streams : kStreams) FB_RETURN_IF_ERROR(rollout.Measure(streams));
  return rollout.Fields();
}

}  // namespace forebay::bench
