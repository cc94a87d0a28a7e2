#include "forebay/rollout/serving/recorded_episode.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/recording_proxy.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/episode_record.h"
#include "forebay/rollout/serving/rewards_json.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {
namespace {

enum SeedUse : uint64_t { kSampling = 1 };  // as rollout/episode.cc derives it

// What would change the distribution in a way that the loss cannot follow is refused; what is only
// a taste is replaced by the run's.
std::optional<ApiError> AdjustSampling(const Assignment& assignment,
                                       const RecordingOptions& options, int64_t call,
                                       ApiRequest* request) {
  GenerateRequest& s = request->sampling;
  const char* field = nullptr;
  if (s.repetition_penalty != 1) field = "repetition_penalty";
  if (s.presence_penalty != 0) field = "presence_penalty";
  if (s.frequency_penalty != 0) field = "frequency_penalty";
  if (!s.logit_bias.empty()) field = "logit_bias";
  if (field != nullptr) {
    return ApiError{.message = fmt::format("'{}' changes what is sampled in a way that training "
                                           "cannot follow: leave it out",
                                           field),
                    .param = field};
  }
  s.temperature = options.temperature;
  s.top_k = 0;
  s.top_p = 1;
  s.min_p = 0;
  const int32_t most = options.new_tokens_per_call_max;
  s.new_tokens_max = s.new_tokens_max == 0 ? most : std::min(s.new_tokens_max, most);
  s.priority = assignment.id.group_id;  // old groups finish first
  request->seed = DeriveSeed(assignment.seed, kSampling, static_cast<uint64_t>(call));
  return std::nullopt;
}

// The tool that the answer asks for. Only a name that the harness has declared: what a policy makes
// up would be a new line of every report.
std::string ToolOf(const std::vector<std::string>& tools, const Answer& answer) {
  if (answer.calls().empty()) return {};
  const std::string& name = answer.calls().front().name;
  const bool known = std::ranges::find(tools, name) != tools.end();
  return known ? name : std::string();
}

}  // namespace

RecordedEpisode::RecordedEpisode(const ServedModel& model, const Assignment& assignment,
                                 const RecordingOptions& options)
    : assignment_(assignment), options_(options), started_us_(WallMicros()), record_(model) {}

std::optional<ApiError> RecordedEpisode::Begin(ApiRequest* request, int64_t environment_us) {
  const MutexLock lock(mutex_);
  if (closed_) return HttpError(401, "the episode of this key has ended");
  record_.AddEnvironmentTime(environment_us);
  if (calls_ >= options_.calls_max) {
    out_of_calls_ = true;
    return ApiError{.message = fmt::format("this episode may make {} calls and has made them",
                                           options_.calls_max),
                    .code = "episode_over"};
  }
  if (auto error = AdjustSampling(assignment_, options_, calls_, request)) return error;
  ++calls_;
  return std::nullopt;
}

std::optional<ApiError> RecordedEpisode::Prompts(ApiRequest* request,
                                                 std::vector<RecordedPrompt>* out,
                                                 int64_t* reserved) {
  const MutexLock lock(mutex_);
  if (auto error = record_.Prompts(*request, out)) return error;
  int64_t growth = 0;
  for (const RecordedPrompt& prompt : *out) growth += record_.Growth(prompt, request->n);
  const int64_t answers = request->n * static_cast<int64_t>(out->size());
  const int64_t left = options_.tokens_max - record_.tokens() - reserved_ - growth;
  if (left < answers) {
    out_of_tokens_ = true;
    return ApiError{
        .message = fmt::format("this episode has used up its {} tokens", options_.tokens_max),
        .code = "episode_over"};
  }
  int32_t& most = request->sampling.new_tokens_max;
  most = static_cast<int32_t>(std::min<int64_t>(most, left / answers));
  *reserved = growth + answers * most;
  reserved_ += *reserved;
  return std::nullopt;
}

void RecordedEpisode::Release(int64_t reserved) {
  const MutexLock lock(mutex_);
  reserved_ -= reserved;
}

void RecordedEpisode::Add(const std::vector<std::string>& tools, const RecordedPrompt& prompt,
                          const GenerateResult& result, const Answer& answer) {
  const MutexLock lock(mutex_);
  if (!closed_) record_.Add(prompt, result, answer, ToolOf(tools, answer));
}

void RecordedEpisode::Fail(const Status& status) {
  // Too many waiting, or a prompt that cannot be: the harness is told and may try again.
  const bool infrastructure = status.code() != StatusCode::kResourceExhausted &&
                              status.code() != StatusCode::kInvalidArgument &&
                              status.code() != StatusCode::kCancelled;
  const MutexLock lock(mutex_);
  if (infrastructure && engine_failure_.ok()) engine_failure_ = status;
}

std::optional<std::string> RecordedEpisode::PostReward(std::string_view body, ApiError* error) {
  const MutexLock lock(mutex_);
  if (closed_) {
    *error = HttpError(401, "the episode of this key has ended");
    return std::nullopt;
  }
  const std::string wrong = ReadRewards(body, &rewards_);
  if (!wrong.empty()) {
    *error = {.message = wrong, .param = "reward"};
    return std::nullopt;
  }
  return nlohmann::json({{"rewards", rewards_}})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Trajectory RecordedEpisode::Close(const HarnessEnd& end, const std::string& last_refusal,
                                  int64_t environment_us, Status* reason) {
  const MutexLock lock(mutex_);
  closed_ = true;
  record_.AddEnvironmentTime(environment_us);
  Trajectory out;
  out.id = assignment_.id;
  out.environment = options_.environment;
  out.temperature = options_.temperature;
  out.started_us = started_us_;
  // Not the wall clock again: it may have been set meanwhile.
  out.ended_us =
      started_us_ + std::chrono::duration_cast<std::chrono::microseconds>(Now() - started_).count();
  Trajectory empty = out;
  out.rewards = rewards_;
  for (const auto& [name, value] : end.rewards) out.rewards[name] = value;
  record_.Write(&out);
  out.outcome = Judge(end, last_refusal, out, reason);
  if (Status valid = Validate(out); !valid.ok()) {
    *reason = std::move(valid);
    empty.outcome = Outcome::kEnvError;
    return empty;
  }
  return out;
}

std::string LastWords(const HarnessEnd& end) {
  if (!end.last_errors.empty()) {
    return "; the last lines of its standard error:\n" + end.last_errors;
  }
  if (end.how.empty()) return {};  // nobody knows what it wrote
  if (end.last_output_line.empty()) return "; it wrote nothing";
  return "; it wrote nothing to standard error, and last to standard output:\n" +
         end.last_output_line;
}

Outcome RecordedEpisode::Judge(const HarnessEnd& end, const std::string& last_refusal,
                               const Trajectory& trajectory, Status* reason) const {
  if (!engine_failure_.ok()) {
    *reason = engine_failure_;
    return Outcome::kEngineError;
  }
  if (end.outcome != Outcome::kDone) {
    *reason = end.reason;
    return end.outcome;
  }
  const std::string harness = "the harness " + (end.how.empty() ? "ended" : end.how);
  const std::string refused =
      last_refusal.empty() ? "" : "; the last request that was refused: " + last_refusal;
  if (trajectory.loss_tokens() == 0) {
    *reason = Unavailable(
        harness +
        (calls_ == 0 ? " without asking the policy: it must send its calls to OPENAI_BASE_URL, "
                       "with OPENAI_API_KEY as the key"
                     : " and asked the policy, but none of its calls was answered") +
        refused + LastWords(end));
    return Outcome::kEnvError;
  }
  if (out_of_tokens_) return Outcome::kTruncatedTokens;
  if (trajectory.rewards.empty()) {
    *reason = Unavailable(
        harness +
        " and nobody has given a reward: it must post one to FOREBAY_REWARD_URL, or write "
        "{\"reward\": 1.0} as the last line of its standard output" +
        refused + LastWords(end));
    return Outcome::kGraderError;
  }
  return out_of_calls_ ? Outcome::kTruncatedTurns : Outcome::kDone;
}

}  // namespace forebay::rollout::serving
