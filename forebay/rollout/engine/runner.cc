#include "forebay/rollout/engine/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/device.h"
#include "forebay/rollout/engine/device_weights.h"
#include "forebay/rollout/engine/logit_edits.h"
#include "forebay/rollout/engine/scheduler.h"
#include "forebay/rollout/engine/slots.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {
namespace {

int64_t Micros(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

bool Filters(const GenerateRequest& request) {
  return request.temperature > 0 && (request.top_k > 0 || request.top_p < 1 || request.min_p > 0);
}

}  // namespace

Runner::Runner(const RunnerOptions& options, std::unique_ptr<EngineDevice> device)
    : options_(options),
      device_(std::move(device)),
      table_({.slots = options.slots, .exact_block = options.exact_block}),
      running_(static_cast<size_t>(options.slots)),
      inputs_(options.slots),
      edits_(options.slots, options.vocab_size, options.context) {
  stats_.slots = options.slots;
}

void Runner::Add(Pending pending) {
  const int64_t priority = pending.request.priority;
  const TimePoint deadline = pending.request.deadline;
  queue_.Push(priority, deadline, std::move(pending));
}

bool Runner::idle() const {
  return queue_.empty() && table_.Count(SlotPhase::kFree) == table_.size();
}

EngineStats Runner::stats() const {
  EngineStats out = stats_;
  out.active = table_.size() - table_.Count(SlotPhase::kFree);
  out.recompiles_after_warmup = device_->compiles_after_warmup();
  return out;
}

void Runner::Cancel(std::span<const uint64_t> ids) {
  const auto cancelled = [&](const Pending& pending) {
    return std::find(ids.begin(), ids.end(), pending.id) != ids.end();
  };
  for (Pending& pending : queue_.TakeIf(cancelled)) {
    finished_.push_back({std::move(pending.done),
                         Cancelled("the request was cancelled while it waited for a slot")});
  }
  for (int64_t i = 0; i < table_.size(); ++i) {
    const std::optional<Pending>& pending = running_[static_cast<size_t>(i)];
    if (!pending || !cancelled(*pending)) continue;
    const size_t sampled = pending->result.tokens.size();
    End(i, Cancelled(fmt::format("the request was cancelled after {} tokens", sampled)));
  }
}

std::shared_ptr<DeviceWeights> Runner::SetWeights(std::shared_ptr<DeviceWeights> weights) {
  const TimePoint began = Now();
  std::shared_ptr<DeviceWeights> before = device_->SetWeights(std::move(weights));
  table_.NewWeights();
  ++stats_.publishes;
  stats_.publish_stall_last_s = Seconds(Now() - began);
  stats_.publish_stall_seconds += stats_.publish_stall_last_s;
  stats_.publish_stall_max_s = std::max(stats_.publish_stall_max_s, stats_.publish_stall_last_s);
  return before;
}

void Runner::Expire(TimePoint now) {
  for (Pending& pending : queue_.TakeExpired(now)) {
    finished_.push_back(
        {std::move(pending.done),
         DeadlineExceeded("the request waited for a slot of the engine until its deadline")});
  }
  for (int64_t i = 0; i < table_.size(); ++i) {
    const std::optional<Pending>& pending = running_[static_cast<size_t>(i)];
    if (!pending || pending->request.deadline > now) continue;
    const size_t sampled = pending->result.tokens.size();
    End(i, DeadlineExceeded(
               fmt::format("the request reached its deadline after {} of at most {} tokens",
                           sampled, pending->request.new_tokens_max)));
  }
}

void Runner::Admit() {
  while (!queue_.empty() && table_.HasFree()) {
    Pending pending = queue_.Pop();
    pending.admitted = Now();
    pending.result.queue_us = Micros(pending.admitted - pending.arrived);
    if (!pending.request.stop_strings.empty()) {
      pending.stop_text.emplace(*options_.tokenizer, pending.request.stop_strings);
    }
    const int64_t slot = table_.Admit(pending.request.prompt);
    edits_.Begin(slot, pending.request);
    running_[static_cast<size_t>(slot)].emplace(std::move(pending));
  }
}

Status Runner::Step() {
  Expire(Now());
  Admit();
  FB_RETURN_IF_ERROR(StartPrefills());
  const int64_t next = table_.NextPrefill();
  const int64_t chunk = next < 0 ? 0
                                 : ChunkSize(options_.prefill_chunks, table_.slot(next).prompt - 1 -
                                                                          table_.slot(next).cached);
  switch (NextAction({.decoding = table_.Count(SlotPhase::kDecode),
                      .next_chunk = chunk,
                      .prefilled_since_decode = prefilled_since_decode_,
                      .prefill_max = options_.prefill_chunks.back()})) {
    case Action::kIdle:
      return OkStatus();
    case Action::kPrefill:
      prefilled_since_decode_ += chunk;
      return PrefillChunk(next);
    case Action::kDecode:
      prefilled_since_decode_ = 0;
      return DecodeStep();
  }
  return OkStatus();
}

Status Runner::StartPrefills() {
  for (int64_t slot = table_.NextPrefill(); slot >= 0 && !table_.slot(slot).started;
       slot = table_.NextPrefill()) {
    if (const std::optional<SlotTable::Source> source = table_.FindSource(slot)) {
      const TimePoint began = Now();
      FB_RETURN_IF_ERROR(device_->CopySlot(source->slot, slot, source->tokens));
      table_.Copied(slot, *source);
      stats_.busy_seconds += Seconds(Now() - began);
    }
    table_.StartPrefill(slot);
    running_[static_cast<size_t>(slot)]->result.prompt_tokens_reused = table_.slot(slot).reused;
    stats_.reused_tokens += table_.slot(slot).reused;
    if (table_.slot(slot).phase == SlotPhase::kDecode) BeginDecode(slot);
  }
  return OkStatus();
}

Status Runner::PrefillChunk(int64_t index) {
  const Slot& slot = table_.slot(index);
  const int64_t target = slot.prompt - 1;
  const int64_t chunk = ChunkSize(options_.prefill_chunks, target - slot.cached);
  const int64_t start = ChunkStart(slot.cached, chunk, options_.context);
  const int64_t end = std::min(start + chunk, target);
  const TimePoint began = Now();
  FB_RETURN_IF_ERROR(
      device_->Prefill(index, start, chunk,
                       std::span<const int32_t>(slot.tokens)
                           .subspan(static_cast<size_t>(start), static_cast<size_t>(end - start))));
  stats_.busy_seconds += Seconds(Now() - began);
  stats_.prefill_tokens += end - slot.cached;
  table_.Prefilled(index, end);
  if (slot.phase == SlotPhase::kDecode) BeginDecode(index);
  return OkStatus();
}

void Runner::BeginDecode(int64_t index) {
  const auto i = static_cast<size_t>(index);
  Pending& pending = *running_[i];
  const GenerateRequest& request = pending.request;
  pending.decode_began = Now();
  pending.result.prefill_us = Micros(pending.decode_began - pending.admitted);
  inputs_.tokens[i] = request.prompt.back();
  inputs_.positions[i] = static_cast<int32_t>(request.prompt.size()) - 1;
  inputs_.temperatures[i] = static_cast<float>(request.temperature);
  inputs_.seeds[2 * i] = static_cast<uint32_t>(request.seed);
  inputs_.seeds[2 * i + 1] = static_cast<uint32_t>(request.seed >> 32);
  inputs_.top_k[i] = request.top_k;
  inputs_.top_p[i] = static_cast<float>(request.top_p);
  inputs_.min_p[i] = static_cast<float>(request.min_p);
  inputs_changed_ = true;
}

DecodeSampling Runner::Sampling() const {
  DecodeSampling sampling{.edits = edits_.any() ? &edits_ : nullptr};
  for (int64_t slot = 0; slot < table_.size(); ++slot) {
    if (table_.slot(slot).phase != SlotPhase::kDecode) continue;
    const GenerateRequest& request = running_[static_cast<size_t>(slot)]->request;
    sampling.filter = sampling.filter || Filters(request);
    sampling.top_logprobs = std::max(sampling.top_logprobs, request.top_logprobs);
  }
  return sampling;
}

Status Runner::DecodeStep() {
  const TimePoint began = Now();
  FB_ASSIGN_OR_RETURN(const DecodeOutputs outputs,
                      device_->Decode(inputs_, inputs_changed_, Sampling()));
  inputs_changed_ = false;
  stats_.busy_seconds += Seconds(Now() - began);
  ++stats_.decode_steps;
  stats_.sampled_tokens += table_.Count(SlotPhase::kDecode);
  for (int64_t slot = 0; slot < table_.size(); ++slot) {
    if (table_.slot(slot).phase != SlotPhase::kDecode) continue;
    FB_RETURN_IF_ERROR(TakeToken(slot, outputs));
  }
  return OkStatus();
}

Status Runner::TakeToken(int64_t slot, const DecodeOutputs& outputs) {
  const auto i = static_cast<size_t>(slot);
  Pending& pending = *running_[i];
  const int32_t token = outputs.tokens[i];
  const float logprob = outputs.logprobs[i];
  const int64_t version = weights().policy_version;
  if (!std::isfinite(logprob) || token < 0 || token >= options_.vocab_size) {
    End(slot, Internal(fmt::format(
                  "the model overflows under the weights of policy version {}: a token got the "
                  "log-probability {}",
                  version, logprob)));
    table_.Cleared(slot);
    return device_->ClearSlot(slot);
  }
  table_.Sampled(slot, token);
  edits_.Sampled(slot, token);
  ++inputs_.positions[i];
  inputs_.tokens[i] = token;

  GenerateResult& result = pending.result;
  result.tokens.push_back(token);
  result.logprobs.push_back(logprob);
  if (result.versions.empty() || result.versions.back().policy_version != version) {
    result.versions.push_back({.policy_version = version, .tokens = 0});
  }
  ++result.versions.back().tokens;
  if (pending.request.top_logprobs > 0) {
    result.top_logprobs.push_back(outputs.Top(slot, pending.request.top_logprobs));
  }
  if (pending.request.on_token) {
    TokenEvent event{.request = pending.id,
                     .index = static_cast<int64_t>(result.tokens.size()) - 1,
                     .token = token,
                     .logprob = logprob,
                     .policy_version = version,
                     .top_logprobs = {}};
    if (!result.top_logprobs.empty()) event.top_logprobs = result.top_logprobs.back();
    pending.request.on_token(event);
  }

  const Result<std::optional<FinishReason>> reason = Finishes(slot, pending);
  if (!reason.ok()) {
    End(slot, reason.status());
  } else if (*reason) {
    result.finish_reason = **reason;
    result.decode_us = Micros(Now() - pending.decode_began);
    End(slot, std::move(result));
  }
  return OkStatus();
}

Result<std::optional<FinishReason>> Runner::Finishes(int64_t slot, Pending& pending) const {
  GenerateResult& result = pending.result;
  const int32_t token = result.tokens.back();
  const std::vector<int32_t>& stops = pending.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    result.stop_token = token;
    return std::optional(FinishReason::kStop);
  }
  if (pending.stop_text) {
    FB_ASSIGN_OR_RETURN(result.stop_string, pending.stop_text->Add(token));
    if (!result.stop_string.empty()) return std::optional(FinishReason::kStop);
  }
  if (static_cast<int64_t>(result.tokens.size()) >= pending.request.new_tokens_max) {
    return std::optional(FinishReason::kLength);
  }
  if (static_cast<int64_t>(table_.slot(slot).tokens.size()) >= options_.context) {
    return std::optional(FinishReason::kContext);
  }
  return std::optional<FinishReason>();
}

void Runner::End(int64_t slot, Result<GenerateResult> result) {
  const auto i = static_cast<size_t>(slot);
  finished_.push_back({std::move(running_[i]->done), std::move(result)});
  running_[i].reset();
  table_.Release(slot);
  edits_.End(slot);
  inputs_.positions[i] = -1;
  inputs_changed_ = true;
}

void Runner::EndAll(const Status& reason) {
  for (int64_t slot = 0; slot < table_.size(); ++slot) {
    if (running_[static_cast<size_t>(slot)]) End(slot, reason);
  }
  while (!queue_.empty()) finished_.push_back({queue_.Pop().done, reason});
}

}  // namespace forebay::rollout
