#include "forebay/rollout/engine/device.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/huge_pages.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/device_weights.h"
#include "forebay/rollout/engine/logit_edits.h"
#include "forebay/rollout/engine/programs.h"
#include "forebay/rollout/engine/scheduler.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shared_host.h"

namespace forebay::rollout {
namespace {

// Most requests that edit logits at all have a short bias list or short answers.
constexpr int64_t kNarrowEdits = 64;

// Where an array is long, in large pages: the cache is read in long strides, and a step of 32 slots
// is 3 % faster.
Result<xla::Buffer> Zeros(xla::Client& client, const xla::Shape& shape) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const auto bytes = static_cast<size_t>(shape.bytes());
  if (shape.bytes() < kHugePage) return client.FromHost(std::vector<std::byte>(bytes), shape);
  FB_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory, AllocateHugePages(bytes));
  return xla::GiveHost(client, std::move(memory), shape);
}

Result<xla::Buffer> Scalar(xla::Client& client, int64_t value) {
  return client.FromVector<int32_t>({static_cast<int32_t>(value)}, {xla::DType::kS32, {}});
}

}  // namespace

DecodeInputs::DecodeInputs(int64_t slots)
    : tokens(static_cast<size_t>(slots), 0),
      positions(static_cast<size_t>(slots), -1),
      temperatures(static_cast<size_t>(slots), 0),
      seeds(static_cast<size_t>(2 * slots), 0),
      top_k(static_cast<size_t>(slots), 0),
      top_p(static_cast<size_t>(slots), 1),
      min_p(static_cast<size_t>(slots), 0) {}

std::vector<TokenLogprob> DecodeOutputs::Top(int64_t slot, int32_t count) const {
  std::vector<TokenLogprob> out;
  const auto first = static_cast<size_t>(slot * kTopLogprobsMax);
  for (size_t i = first; i < first + static_cast<size_t>(count); ++i) {
    if (std::isfinite(top_logprobs[i])) out.push_back({top_tokens[i], top_logprobs[i]});
  }
  return out;
}

EngineDevice::EngineDevice(const EngineDeviceOptions& options, int64_t vocab_size,
                           xla::Client& client, std::shared_ptr<DeviceWeights> weights)
    : options_(options), vocab_size_(vocab_size), client_(client), weights_(std::move(weights)) {
  // Looking at too many entries costs a prefill little (12 % for four times as many), a program
  // costs seconds.
  prefill_buckets_ = {options_.context_buckets.front()};
  if (options_.context_buckets.size() > 1) {
    prefill_buckets_.push_back(options_.context_buckets.back());
  }
}

Result<std::unique_ptr<EngineDevice>> EngineDevice::Create(const EngineDeviceOptions& options,
                                                           xla::Client& client,
                                                           const models::Model& model,
                                                           std::shared_ptr<DeviceWeights> weights) {
  std::unique_ptr<EngineDevice> device(
      new EngineDevice(options, model.config().vocab_size, client, std::move(weights)));
  FB_RETURN_IF_ERROR(device->CompileAll(model));
  FB_RETURN_IF_ERROR(device->MakeCache(model));
  FB_RETURN_IF_ERROR(device->WarmUp());
  device->warm_compiles_ = client.counters().compiled;
  return device;
}

Status EngineDevice::Compile(Result<xla::Program> program, std::shared_ptr<xla::Executable>* out) {
  if (!program.ok()) return program.status();
  FB_ASSIGN_OR_RETURN(*out, client_.Compile(*program));
  return OkStatus();
}

Status EngineDevice::CompileAll(const models::Model& model) {
  for (const int64_t bucket : options_.context_buckets) {
    FB_RETURN_IF_ERROR(Compile(DecodeProgram(model, options_.shape, bucket), &decode_[bucket]));
    FB_RETURN_IF_ERROR(Compile(CopyProgram(model, options_.shape, bucket), &copy_[bucket]));
  }
  for (const int64_t bucket : prefill_buckets_) {
    for (const int64_t chunk : options_.prefill_chunks) {
      if (chunk > bucket) continue;
      FB_RETURN_IF_ERROR(Compile(PrefillProgram(model, options_.shape, chunk, bucket),
                                 &prefill_[{chunk, bucket}]));
    }
  }
  const int64_t slots = options_.shape.slots, vocab = vocab_size_;
  FB_RETURN_IF_ERROR(Compile(SampleProgram(options_.shape, vocab), &sample_));
  FB_RETURN_IF_ERROR(Compile(FilterProgram(slots, vocab), &filter_));
  FB_RETURN_IF_ERROR(Compile(TopProgram(slots, vocab, kTopLogprobsMax), &top_));
  const int64_t widest = LogitEdits(slots, vocab, options_.shape.context).capacity();
  for (const int64_t width : {std::min(kNarrowEdits, widest), widest}) {
    FB_RETURN_IF_ERROR(Compile(EditProgram(slots, vocab, width), &edit_[width]));
  }
  return OkStatus();
}

Status EngineDevice::MakeCache(const models::Model& model) {
  const xla::Shape shape = CacheShape(model.config(), options_.shape);
  for (int64_t i = 0; i < 2 * model.config().layers; ++i) {
    FB_ASSIGN_OR_RETURN(xla::Buffer layer, Zeros(client_, shape));
    cache_.push_back(std::move(layer));
  }
  const xla::Shape logits{xla::DType::kF32, {options_.shape.slots, vocab_size_}};
  FB_ASSIGN_OR_RETURN(logits_, Zeros(client_, logits));
  return OkStatus();
}

Status EngineDevice::WarmUp() {
  const DecodeInputs idle(options_.shape.slots);
  FB_RETURN_IF_ERROR(Load(idle));
  const LogitEdits no_edits(options_.shape.slots, vocab_size_, options_.shape.context);
  for (auto& [bucket, program] : decode_) {
    std::array<xla::Buffer*, 3> inputs = {&tokens_, &positions_, &logits_};
    FB_ASSIGN_OR_RETURN(std::vector<xla::Buffer> results, Run(*program, true, inputs));
    logits_ = std::move(results[0]);
    xla::Buffer logits;
    FB_RETURN_IF_ERROR(FilterLogits(logits_, &logits));
    for (const auto& [width, program_of_width] : edit_) {
      FB_RETURN_IF_ERROR(EditLogits(no_edits.Pack(width), *program_of_width, logits_, &logits));
    }
    FB_RETURN_IF_ERROR(FindTop(1, &logits).status());
    FB_RETURN_IF_ERROR(Call(*sample_, {&logits, &positions_, &temperatures_, &seeds_}).status());
  }
  for (auto& [key, program] : prefill_) {
    const auto [chunk, bucket] = key;
    FB_RETURN_IF_ERROR(Prefill(0, bucket - chunk, chunk, std::array<int32_t, 1>{0}));
  }
  for (const int64_t bucket : options_.context_buckets) {
    FB_RETURN_IF_ERROR(CopySlot(0, options_.shape.slots - 1, bucket));
  }
  return OkStatus();
}

Result<std::vector<xla::Buffer>> EngineDevice::Run(xla::Executable& program, bool with_params,
                                                   std::span<xla::Buffer* const> inputs) {
  std::vector<xla::Buffer*> arguments;
  if (with_params) {
    for (xla::Buffer& param : weights_->params) arguments.push_back(&param);
  }
  for (xla::Buffer& layer : cache_) arguments.push_back(&layer);
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  FB_ASSIGN_OR_RETURN(std::vector<xla::Buffer> results, program.Execute(arguments));
  FB_CHECK(results.size() >= cache_.size(), "every program returns the cache");
  std::move(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(cache_.size()),
            cache_.begin());
  results.erase(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(cache_.size()));
  return results;
}

Status EngineDevice::Load(const DecodeInputs& inputs) {
  const int64_t slots = options_.shape.slots;
  FB_ASSIGN_OR_RETURN(tokens_, client_.FromVector(inputs.tokens, {xla::DType::kS32, {slots}}));
  FB_ASSIGN_OR_RETURN(positions_,
                      client_.FromVector(inputs.positions, {xla::DType::kS32, {slots}}));
  FB_ASSIGN_OR_RETURN(temperatures_,
                      client_.FromVector(inputs.temperatures, {xla::DType::kF32, {slots}}));
  FB_ASSIGN_OR_RETURN(seeds_, client_.FromVector(inputs.seeds, {xla::DType::kU32, {slots, 2}}));
  FB_ASSIGN_OR_RETURN(top_k_, client_.FromVector(inputs.top_k, {xla::DType::kS32, {slots}}));
  FB_ASSIGN_OR_RETURN(top_p_, client_.FromVector(inputs.top_p, {xla::DType::kF32, {slots}}));
  FB_ASSIGN_OR_RETURN(min_p_, client_.FromVector(inputs.min_p, {xla::DType::kF32, {slots}}));
  return OkStatus();
}

Status EngineDevice::EditLogits(const LogitEdits::Arrays& arrays, xla::Executable& program,
                                xla::Buffer& logits, xla::Buffer* edited) {
  const std::vector<int64_t> dims = program.program().arguments[1].dims;
  FB_ASSIGN_OR_RETURN(xla::Buffer tokens,
                      client_.FromVector(arrays.tokens, {xla::DType::kS32, dims}));
  FB_ASSIGN_OR_RETURN(xla::Buffer biases,
                      client_.FromVector(arrays.biases, {xla::DType::kF32, dims}));
  FB_ASSIGN_OR_RETURN(xla::Buffer factors,
                      client_.FromVector(arrays.factors, {xla::DType::kF32, dims}));
  FB_ASSIGN_OR_RETURN(xla::Buffer subtract,
                      client_.FromVector(arrays.subtract, {xla::DType::kF32, dims}));
  FB_ASSIGN_OR_RETURN(std::vector<xla::Buffer> results,
                      Call(program, {&logits, &tokens, &biases, &factors, &subtract}));
  *edited = std::move(results[0]);
  return OkStatus();
}

Status EngineDevice::FilterLogits(xla::Buffer& logits, xla::Buffer* filtered) {
  FB_ASSIGN_OR_RETURN(std::vector<xla::Buffer> results,
                      Call(*filter_, {&logits, &temperatures_, &top_k_, &top_p_, &min_p_}));
  *filtered = std::move(results[0]);
  return OkStatus();
}

Result<std::vector<xla::Buffer>> EngineDevice::FindTop(int32_t count, xla::Buffer* logits) {
  FB_ASSIGN_OR_RETURN(xla::Buffer wanted, Scalar(client_, count));
  return Call(*top_, {logits, &temperatures_, &wanted});
}

Result<DecodeOutputs> EngineDevice::Decode(const DecodeInputs& inputs, bool changed,
                                           const DecodeSampling& sampling) {
  const int64_t last = *std::max_element(inputs.positions.begin(), inputs.positions.end());
  if (changed) FB_RETURN_IF_ERROR(Load(inputs));
  std::array<xla::Buffer*, 3> arguments = {&tokens_, &positions_, &logits_};
  xla::Executable& program = *decode_.at(ContextBucket(options_.context_buckets, last + 1));
  FB_ASSIGN_OR_RETURN(std::vector<xla::Buffer> results, Run(program, true, arguments));
  logits_ = std::move(results[0]);
  positions_ = std::move(results[1]);
  xla::Buffer edited, filtered;
  xla::Buffer* logits = &logits_;
  if (sampling.edits != nullptr) {
    const auto edit = edit_.lower_bound(sampling.edits->longest());
    FB_CHECK(edit != edit_.end(), "a row of edits is longer than it may be");
    FB_RETURN_IF_ERROR(
        EditLogits(sampling.edits->Pack(edit->first), *edit->second, *logits, &edited));
    logits = &edited;
  }
  if (sampling.filter) {
    FB_RETURN_IF_ERROR(FilterLogits(*logits, &filtered));
    logits = &filtered;
  }
  FB_ASSIGN_OR_RETURN(std::vector<xla::Buffer> sampled,
                      Call(*sample_, {logits, &positions_, &temperatures_, &seeds_}));
  tokens_ = std::move(sampled[1]);
  std::vector<xla::Buffer> top;
  if (sampling.top_logprobs > 0) {
    FB_ASSIGN_OR_RETURN(top, FindTop(sampling.top_logprobs, logits));
  }

  FB_ASSIGN_OR_RETURN(const std::vector<int32_t> packed, sampled[0].ToVector<int32_t>());
  const auto middle = packed.begin() + options_.shape.slots;
  DecodeOutputs out;
  out.tokens.assign(packed.begin(), middle);
  std::transform(middle, packed.end(), std::back_inserter(out.logprobs),
                 [](int32_t bits) { return std::bit_cast<float>(bits); });
  if (!top.empty()) {
    FB_ASSIGN_OR_RETURN(out.top_tokens, top[0].ToVector<int32_t>());
    FB_ASSIGN_OR_RETURN(out.top_logprobs, top[1].ToVector<float>());
  }
  return out;
}

Status EngineDevice::Prefill(int64_t slot, int64_t start, int64_t chunk,
                             std::span<const int32_t> tokens) {
  FB_CHECK(static_cast<int64_t>(tokens.size()) <= chunk, "more tokens than the chunk has");
  std::vector<int32_t> padded(static_cast<size_t>(chunk), 0);
  std::copy(tokens.begin(), tokens.end(), padded.begin());
  const int64_t length = static_cast<int64_t>(tokens.size());
  FB_ASSIGN_OR_RETURN(xla::Buffer tokens_T,
                      client_.FromVector(padded, {xla::DType::kS32, {chunk}}));
  FB_ASSIGN_OR_RETURN(xla::Buffer slot_value, Scalar(client_, slot));
  FB_ASSIGN_OR_RETURN(xla::Buffer start_value, Scalar(client_, start));
  FB_ASSIGN_OR_RETURN(xla::Buffer length_value, Scalar(client_, length));
  std::array<xla::Buffer*, 4> inputs = {&tokens_T, &slot_value, &start_value, &length_value};
  const int64_t bucket = ContextBucket(prefill_buckets_, start + chunk);
  FB_RETURN_IF_ERROR(Run(*prefill_.at({chunk, bucket}), true, inputs).status());
  return cache_.back().Await();
}

Status EngineDevice::CopySlot(int64_t from, int64_t to, int64_t entries) {
  FB_ASSIGN_OR_RETURN(xla::Buffer from_value, Scalar(client_, from));
  FB_ASSIGN_OR_RETURN(xla::Buffer to_value, Scalar(client_, to));
  std::array<xla::Buffer*, 2> inputs = {&from_value, &to_value};
  FB_RETURN_IF_ERROR(
      Run(*copy_.at(ContextBucket(options_.context_buckets, entries)), false, inputs).status());
  return cache_.back().Await();
}

}  // namespace forebay::rollout
