// RunEpisode: one coroutine from an assignment to its trajectory.
//
// Awaited tasks are named variables and nothing non-trivial is a temporary in an expression with
// co_await: g++ 12 miscompiles the lifetime of such temporaries.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/conversation.h"
#include "forebay/rollout/engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {
namespace {

constexpr auto kRetryAfter = std::chrono::milliseconds(50);  // when too many requests wait
// No vocabulary has more bytes in a token. Messages beyond that are too long without being
// tokenized, which would keep every other episode of the loop waiting.
constexpr size_t kTokenBytesMax = 128;
enum SeedUse : uint64_t { kSampling = 1, kEnvironment = 2 };

tokenizer::ChatTemplate::Options TemplateOptions(const EpisodeOptions& options, int64_t now_us) {
  return {.add_generation_prompt = true,
          .tools_json = options.tools_json,
          .bos_token = options.bos_token,
          .eos_token = options.eos_token,
          .now_unix_s = now_us / 1'000'000};
}

Outcome EnvironmentOutcome(const Status& status) {
  switch (status.code()) {
    case StatusCode::kDeadlineExceeded:
      return Outcome::kEnvTimeout;
    case StatusCode::kFailedPrecondition:
      return Outcome::kGraderError;
    case StatusCode::kCancelled:
      return Outcome::kAborted;
    default:
      return Outcome::kEnvError;
  }
}

int64_t Micros(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

// The columns of a trajectory as they grow.
class Recorder {
 public:
  explicit Recorder(Trajectory* out) : out_(*out) {}

  int64_t size() const { return static_cast<int64_t>(out_.tokens.size()); }
  const std::vector<int32_t>& tokens() const { return out_.tokens; }

  void AddGiven(TurnKind kind, std::span<const int32_t> tokens) {
    if (tokens.empty()) return;
    Append(kind, tokens);
    out_.loss_mask.resize(out_.tokens.size(), 0);
    out_.rollout_logprobs.resize(out_.tokens.size(), 0.0F);
  }

  void AddSampled(const GenerateResult& result) {
    if (result.tokens.empty()) return;
    Append(TurnKind::kAction, result.tokens);
    out_.loss_mask.resize(out_.tokens.size(), 1);
    out_.rollout_logprobs.insert(out_.rollout_logprobs.end(), result.logprobs.begin(),
                                 result.logprobs.end());
    for (const VersionRun& run : result.versions) {
      if (!out_.versions.empty() && out_.versions.back().policy_version == run.policy_version) {
        out_.versions.back().tokens += run.tokens;
      } else {
        out_.versions.push_back(run);
      }
    }
    out_.turns.back().spans = {.queue_us = result.queue_us,
                               .prefill_us = result.prefill_us,
                               .decode_us = result.decode_us};
  }

  void AddStep(const env::StepResult& step, Duration took) {
    if (!out_.turns.empty() && out_.turns.back().kind == TurnKind::kAction) {
      Turn& turn = out_.turns.back();
      turn.tool = step.tool;
      turn.spans.reward_us = std::max<int64_t>(step.reward_us, 0);
      turn.spans.environment_us = std::max<int64_t>(Micros(took) - turn.spans.reward_us, 0);
    }
    for (const auto& [component, value] : step.rewards) out_.rewards[component] += value;
  }

 private:
  void Append(TurnKind kind, std::span<const int32_t> tokens) {
    const auto begin = static_cast<int32_t>(out_.tokens.size());
    out_.tokens.insert(out_.tokens.end(), tokens.begin(), tokens.end());
    out_.turns.push_back(
        {.kind = kind, .begin = begin, .end = static_cast<int32_t>(out_.tokens.size())});
  }

  Trajectory& out_;
};

// Generates; while the engine has too many waiting, tries again until the request's deadline.
Task<Result<GenerateResult>> GenerateOnLoop(Loop* loop, Engine* engine, GenerateRequest request) {
  for (;;) {
    Completion<Result<GenerateResult>> completion(*loop);
    engine->Generate(request, [completion](Result<GenerateResult> result) {
      completion.Set(std::move(result));
    });
    auto wait = completion.Wait();
    Result<GenerateResult> result = co_await wait;
    const TimePoint again = loop->Now() + kRetryAfter;
    const bool full = !result.ok() && result.status().code() == StatusCode::kResourceExhausted;
    if (!full || again >= request.deadline) co_return result;
    auto sleep = loop->SleepUntil(again);
    co_await sleep;
  }
}

struct End {
  Outcome outcome = Outcome::kDone;
  Status reason;
};

struct EpisodeDeps {
  Loop* loop;
  Engine* engine;
  env::EnvironmentPool* pool;
  const tokenizer::Tokenizer* tokenizer;
  const tokenizer::ChatTemplate* chat;
  const EpisodeOptions* options;
  const Assignment* assignment;
  const std::function<bool()>* abort;

  bool aborted() const { return *abort && (*abort)(); }
};

// What the sampled tokens say, without the stop token at their end.
Result<std::string> ActionText(const tokenizer::Tokenizer& tokenizer,
                               const GenerateResult& result) {
  std::span<const int32_t> tokens = result.tokens;
  if (result.finish_reason == FinishReason::kStop && !tokens.empty()) {
    tokens = tokens.first(tokens.size() - 1);
  }
  // on a worker: where it is called.
  return tokenizer.Decode(tokens, /*skip_special=*/true);
}

bool SurelyTooLong(std::span<const env::Message> messages, int32_t tokens_max) {
  size_t bytes = 0;
  for (const env::Message& message : messages) bytes += message.content.size();
  return bytes / kTokenBytesMax > static_cast<size_t>(tokens_max);
}

End EngineEnd(const EpisodeDeps& deps, int64_t tokens, const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument && tokens >= deps.engine->context_max()) {
    return {.outcome = Outcome::kTruncatedTokens};
  }
  return {.outcome = Outcome::kEngineError, .reason = status};
}

Task<End> Play(EpisodeDeps deps, Trajectory* out) {
  const EpisodeOptions& options = *deps.options;
  Recorder recorder(out);
  if (deps.aborted()) co_return End{.outcome = Outcome::kAborted};

  const TimePoint reset_deadline = deps.loop->Now() + options.reset_deadline;
  Task<Result<std::unique_ptr<env::Environment>>> acquire = deps.pool->Acquire(reset_deadline);
  Result<std::unique_ptr<env::Environment>> acquired = co_await std::move(acquire);
  if (!acquired.ok()) {
    co_return End{.outcome = EnvironmentOutcome(acquired.status()), .reason = acquired.status()};
  }
  const std::unique_ptr<env::Environment> environment = std::move(*acquired);
  if (deps.aborted()) co_return End{.outcome = Outcome::kAborted};

  env::ResetRequest reset{.task_id = deps.assignment->id.task_id,
                          .split = options.split,
                          .seed = DeriveSeed(deps.assignment->seed, kEnvironment)};
  Task<Result<std::vector<env::Message>>> resetting =
      environment->Reset(std::move(reset), reset_deadline);
  Result<std::vector<env::Message>> first = co_await std::move(resetting);
  if (!first.ok()) {
    co_return End{.outcome = EnvironmentOutcome(first.status()), .reason = first.status()};
  }

  if (SurelyTooLong(*first, options.tokens_max)) {
    co_return End{.outcome = Outcome::kTruncatedTokens};
  }
  tokenizer::ChatTemplate::Options rendering = TemplateOptions(options, out->started_us);
  if (rendering.tools_json.empty()) rendering.tools_json = environment->tools_json();
  Conversation conversation(*deps.tokenizer, *deps.chat, std::move(rendering));
  Task<Result<std::vector<int32_t>>> opening = Offload(
      deps.loop, options.workers, [&conversation, &first] { return conversation.Open(*first); });
  Result<std::vector<int32_t>> given = co_await std::move(opening);
  if (!given.ok()) {
    co_return End{.outcome = Outcome::kEnvError,
                  .reason = given.status().WithContext("the environment's first messages")};
  }
  for (int32_t turn = 1;; ++turn) {
    // No token is dropped from a trajectory: what does not fit ends it before it is appended.
    if (recorder.size() + static_cast<int64_t>(given->size()) >= options.tokens_max) {
      co_return End{.outcome = Outcome::kTruncatedTokens};
    }
    recorder.AddGiven(turn == 1 ? TurnKind::kPrompt : TurnKind::kObservation, *given);
    if (deps.aborted()) co_return End{.outcome = Outcome::kAborted};

    const int64_t room = options.tokens_max - recorder.size();
    GenerateRequest request;
    request.prompt = recorder.tokens();
    request.new_tokens_max =
        static_cast<int32_t>(std::min<int64_t>(options.new_tokens_per_turn_max, room));
    request.temperature = options.temperature;
    request.seed = DeriveSeed(deps.assignment->seed, kSampling);  // positions tell turns apart
    request.stop_tokens = options.stop_tokens;
    request.priority = deps.assignment->id.group_id;
    request.deadline = deps.loop->Now() + options.generate_deadline;
    Task<Result<GenerateResult>> generating =
        GenerateOnLoop(deps.loop, deps.engine, std::move(request));
    Result<GenerateResult> generated = co_await std::move(generating);
    if (!generated.ok()) co_return EngineEnd(deps, recorder.size(), generated.status());
    if (generated->tokens.empty()) {
      co_return End{.outcome = Outcome::kEngineError,
                    .reason = Internal("the engine answered without a token")};
    }
    recorder.AddSampled(*generated);
    const bool cut = generated->finish_reason != FinishReason::kStop;
    const bool full = recorder.size() >= options.tokens_max;
    if (generated->finish_reason == FinishReason::kContext || (cut && full)) {
      co_return End{.outcome = Outcome::kTruncatedTokens};
    }
    if (deps.aborted()) co_return End{.outcome = Outcome::kAborted};

    Task<Result<std::string>> reading = Offload(
        deps.loop, options.workers,
        [tokenizer = deps.tokenizer, &generated] { return ActionText(*tokenizer, *generated); });
    Result<std::string> action = co_await std::move(reading);
    if (!action.ok()) co_return End{.outcome = Outcome::kEngineError, .reason = action.status()};
    const TimePoint began = deps.loop->Now();
    Task<Result<env::StepResult>> stepping =
        environment->Step(std::move(*action), began + options.step_deadline);
    Result<env::StepResult> step = co_await std::move(stepping);
    if (!step.ok()) {
      co_return End{.outcome = EnvironmentOutcome(step.status()), .reason = step.status()};
    }
    recorder.AddStep(*step, deps.loop->Now() - began);
    if (step->done) co_return End{.outcome = Outcome::kDone};
    if (turn >= options.turns_max) co_return End{.outcome = Outcome::kTruncatedTurns};

    if (SurelyTooLong(step->messages, options.tokens_max)) {
      co_return End{.outcome = Outcome::kTruncatedTokens};
    }
    Task<Result<std::vector<int32_t>>> going_on =
        Offload(deps.loop, options.workers, [&conversation, &generated, &step] {
          return conversation.Next(generated->tokens.back(), step->messages);
        });
    given = co_await std::move(going_on);
    if (!given.ok()) {
      co_return End{.outcome = Outcome::kEnvError,
                    .reason = given.status().WithContext("the environment's next messages")};
    }
  }
}

}  // namespace

Status CheckEpisodeSetup(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat,
                         const EpisodeOptions& options) {
  Conversation conversation(tokenizer, chat, TemplateOptions(options, WallMicros()));
  const std::vector<env::Message> messages = {{.role = "user", .content = "Hello."}};
  // short: two words, once.
  FB_RETURN_IF_ERROR(conversation.Open(messages).status());
  if (options.turns_max <= 1) return OkStatus();
  // short: the same.
  FB_RETURN_IF_ERROR(conversation.Next(/*last_token=*/-1, messages).status());
  // short: the same, after another answer.
  return conversation.Next(/*last_token=*/-1, messages).status();
}

Task<Trajectory> RunEpisode(Loop& loop, Engine& engine, env::EnvironmentPool& pool,
                            const tokenizer::Tokenizer& tokenizer,
                            const tokenizer::ChatTemplate& chat, const EpisodeOptions& options,
                            Assignment assignment, std::function<bool()> abort) {
  Trajectory out;
  out.id = assignment.id;
  out.environment = options.environment;
  out.temperature = options.temperature;
  out.started_us = WallMicros();
  const TimePoint started = Now();
  const EpisodeDeps deps{.loop = &loop,
                         .engine = &engine,
                         .pool = &pool,
                         .tokenizer = &tokenizer,
                         .chat = &chat,
                         .options = &options,
                         .assignment = &assignment,
                         .abort = &abort};
  Task<End> playing = Play(deps, &out);
  End end = co_await std::move(playing);
  // Not the wall clock again: it may have been set meanwhile.
  out.ended_us = out.started_us + Micros(Now() - started);
  out.outcome = end.outcome;
  if (const Status valid = Validate(out); !valid.ok()) {
    // A reward that is no number, or columns of an engine that disagree: nothing of it may be
    // trained on.
    end = {.outcome = Outcome::kEnvError, .reason = valid};
    Trajectory empty;
    empty.id = out.id;
    empty.environment = out.environment;
    empty.temperature = out.temperature;
    empty.started_us = out.started_us;
    empty.ended_us = out.ended_us;
    empty.outcome = end.outcome;
    out = std::move(empty);
  }
  if (!Trains(out.outcome) && options.on_failure) {
    options.on_failure(out.id, out.outcome, end.reason);
  }
  co_return out;
}

}  // namespace forebay::rollout
