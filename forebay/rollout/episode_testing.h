// Scripted engine and environment for the tests of episodes and actors: everything runs on one
// virtual loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {

// Answers after `takes` by calling `answer`.
class ScriptedEngine final : public Engine {
 public:
  using Answer = std::function<Result<GenerateResult>(const GenerateRequest&)>;
  ScriptedEngine(Loop& loop, Duration takes, Answer answer)
      : loop_(loop), takes_(takes), answer_(std::move(answer)) {}

  uint64_t Generate(GenerateRequest request,
                    std::function<void(Result<GenerateResult>)> done) override {
    requests.push_back(request);
    loop_.RunAt(loop_.Now() + takes_,
                [this, request, done = std::move(done)] { done(answer_(request)); });
    return requests.size();
  }
  void Cancel(uint64_t) override {}
  void Publish(std::shared_ptr<const weights::Snapshot>,
               std::function<void(Status)> taken) override {
    taken(OkStatus());
  }
  int64_t policy_version() const override { return 0; }
  int64_t context_max() const override { return context; }
  EngineStats stats() const override { return {}; }
  void Shutdown() override {}

  std::vector<GenerateRequest> requests;
  int64_t context = 4096;

 private:
  Loop& loop_;
  const Duration takes_;
  const Answer answer_;
};

// Answers each call after `takes` by calling reset or step.
struct EnvironmentScript {
  Duration takes = std::chrono::seconds(1);
  std::function<Result<std::vector<env::Message>>(const env::ResetRequest&)> reset;
  std::function<Result<env::StepResult>(const std::string&)> step;
  Status acquire;          // what Acquire reports
  std::string tools_json;  // that the environment tells of after its reset
  // What happened.
  std::vector<env::ResetRequest> resets;
  std::vector<std::string> actions;
  int64_t alive = 0;
};

class ScriptedPool final : public env::EnvironmentPool {
 public:
  ScriptedPool(Loop& loop, EnvironmentScript* script) : loop_(loop), script_(script) {}
  Task<Result<std::unique_ptr<env::Environment>>> Acquire(TimePoint deadline) override;
  Task<void> Shutdown(TimePoint deadline) override;

 private:
  Loop& loop_;
  EnvironmentScript* script_;
};

// The byte-level tokenizer and ChatML template of weights/tiny_model.h: one token a byte.
struct TinyText {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<tokenizer::ChatTemplate> chat;
};
TinyText MakeTinyText();

// The engine's answer "text", ended by the end of turn or cut.
GenerateResult Said(const tokenizer::Tokenizer& tokenizer, const std::string& text,
                    FinishReason reason = FinishReason::kStop, int64_t policy_version = 0);

}  // namespace forebay::rollout
