#include "forebay/rollout/episode_testing.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {
namespace {

class ScriptedEnvironment final : public env::Environment {
 public:
  ScriptedEnvironment(Loop& loop, EnvironmentScript* script) : loop_(loop), script_(script) {
    ++script_->alive;
  }
  ~ScriptedEnvironment() override { --script_->alive; }

  Task<Result<std::vector<env::Message>>> Reset(env::ResetRequest request, TimePoint) override {
    auto sleep = loop_.SleepUntil(loop_.Now() + script_->takes);
    co_await sleep;
    script_->resets.push_back(request);
    co_return script_->reset(request);
  }
  Task<Result<env::StepResult>> Step(std::string action, TimePoint) override {
    auto sleep = loop_.SleepUntil(loop_.Now() + script_->takes);
    co_await sleep;
    script_->actions.push_back(action);
    co_return script_->step(action);
  }
  std::string tools_json() const override {
    return script_->resets.empty() ? "" : script_->tools_json;
  }

 private:
  Loop& loop_;
  EnvironmentScript* script_;
};

}  // namespace

Task<Result<std::unique_ptr<env::Environment>>> ScriptedPool::Acquire(TimePoint) {
  if (!script_->acquire.ok()) co_return script_->acquire;
  std::unique_ptr<env::Environment> environment =
      std::make_unique<ScriptedEnvironment>(loop_, script_);
  co_return std::move(environment);
}

Task<void> ScriptedPool::Shutdown(TimePoint) { co_return; }

TinyText MakeTinyText() {
  const weights::ModelFiles files = weights::TinyModelFiles({});
  return {.tokenizer = tokenizer::Tokenizer::FromJson(files.tokenizer_json).value(),
          .chat = tokenizer::ChatTemplate::Parse(files.chat_template).value()};
}

GenerateResult Said(const tokenizer::Tokenizer& tokenizer, const std::string& text,
                    FinishReason reason, int64_t policy_version) {
  GenerateResult result;
  result.tokens = tokenizer.Encode(text).value();
  if (reason == FinishReason::kStop) result.tokens.push_back(weights::kTinyEnd);
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    result.logprobs.push_back(-0.25F * static_cast<float>(i + 1));
  }
  result.versions = {
      {.policy_version = policy_version, .tokens = static_cast<int32_t>(result.tokens.size())}};
  result.finish_reason = reason;
  result.queue_us = 1;
  result.prefill_us = 2;
  result.decode_us = 3;
  return result;
}

}  // namespace forebay::rollout
