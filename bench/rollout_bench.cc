// The rollout benchmark: see benchmarks.h.
//
// Decoding: one group of S samples of a prompt of 64 tokens, all of the same length, so that S
// streams decode together from the first to the last step; its time is the decode span of the
// slowest. Prompts: long ones, one token each. The gap: the sampled tokens go through the model as
// the learner runs it (packed rows, ChunkedLogprobs), and the largest difference counts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/smollm2.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
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

}  // namespace

Result<nlohmann::ordered_json> RolloutBench(const BenchOptions& options) {
  const int repeats = options.quick ? 2 : 5;
  const int64_t new_tokens = options.quick ? 32 : 96;
  FB_ASSIGN_OR_RETURN(const SmolLm2 smol, LoadSmolLm2());
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<xla::Client> client, MakeClient());
  const int64_t vocab = smol.model->config().vocab_size;
  Rng rng(2);
  nlohmann::ordered_json tokens_per_s, decode_spread, peers;
  double gap = 0;
  int64_t recompiles = 0;
  std::vector<double> prompt_rates;
  for (const int64_t streams : kStreams) {
    options.Say(fmt::format("{} streams", streams));
    FB_ASSIGN_OR_RETURN(
        const std::unique_ptr<rollout::Engine> engine,
        rollout::MakeXlaEngine({.slots = streams, .context = kContext}, *client, smol.model,
                               {.policy_version = 0, .tensors = smol.tensors}));
    std::vector<double> rates;
    for (int round = 0; round < repeats; ++round) {
      const auto requests = Group(rng, streams, new_tokens, vocab);
      FB_ASSIGN_OR_RETURN(const auto results, GenerateAll(*engine, requests));
      int64_t slowest_us = 0, sampled = 0;
      for (const GenerateResult& result : results) {
        slowest_us = std::max(slowest_us, result.decode_us);
        sampled += static_cast<int64_t>(result.tokens.size());
      }
      rates.push_back(1e6 * static_cast<double>(sampled) / static_cast<double>(slowest_us));
      if (round == 0) {
        FB_ASSIGN_OR_RETURN(const double this_gap, LogprobGap(smol, *client, requests, results));
        gap = std::max(gap, this_gap);
      }
    }
    if (streams == 1) {
      for (int round = 0; round < repeats; ++round) {
        const std::vector<GenerateRequest> request = {
            {.prompt = RandomTokens(rng, kLongPromptTokens, vocab), .new_tokens_max = 1}};
        FB_ASSIGN_OR_RETURN(const auto results, GenerateAll(*engine, request));
        prompt_rates.push_back(1e6 * static_cast<double>(kLongPromptTokens) /
                               static_cast<double>(results[0].prefill_us));
      }
    }
    const std::string name = fmt::format("w{}", streams);
    const Spread spread = Summarize(rates);
    tokens_per_s[name] = spread.median;
    decode_spread[name] = ToJson(spread);
    peers[name] = nullptr;
    recompiles += engine->stats().recompiles_after_warmup;
    engine->Shutdown();
  }
  const Spread prompt = Summarize(prompt_rates);
  tokens_per_s["prompt"] = prompt.median;
  decode_spread["prompt"] = ToJson(prompt);

  nlohmann::ordered_json fields;
  fields["tokens_per_s"] = tokens_per_s;
  fields["vs_vllm_cpu"] = peers;
  fields["vs_llamacpp_f16"] = peers;
  fields["logprob_gap_max"] = gap;
  fields["recompiles_after_warmup"] = recompiles;
  fields["spread"] = decode_spread;
  return fields;
}

}  // namespace forebay::bench
