#include "forebay/env/tools_testing.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env {
namespace {

class AnswerEnvironment final : public Environment {
 public:
  explicit AnswerEnvironment(std::vector<Message> first) : first_(std::move(first)) {}
  Task<Result<std::vector<Message>>> Reset(ResetRequest, TimePoint) override { co_return first_; }
  Task<Result<StepResult>> Step(std::string action, TimePoint) override {
    StepResult result;
    result.done = true;
    result.rewards["answer"] = action == "right" ? 1 : 0;
    co_return result;
  }

 private:
  std::vector<Message> first_;
};

class Pool final : public EnvironmentPool {
 public:
  explicit Pool(std::vector<Message> first) : first_(std::move(first)) {}
  Task<Result<std::unique_ptr<Environment>>> Acquire(TimePoint) override {
    co_return std::unique_ptr<Environment>(std::make_unique<AnswerEnvironment>(first_));
  }
  Task<void> Shutdown(TimePoint) override { co_return; }

 private:
  std::vector<Message> first_;
};

class FunctionSession final : public ToolSession {
 public:
  FunctionSession(const std::vector<std::string>& names, ToolFunction function)
      : function_(std::move(function)) {
    for (const std::string& name : names) {
      tools_.push_back({.name = name, .description = "the tool " + name});
    }
  }
  const std::vector<ToolSpec>& tools() const override { return tools_; }
  Task<Result<ToolResult>> Call(ToolCall call, TimePoint) override { co_return function_(call); }

 private:
  std::vector<ToolSpec> tools_;
  ToolFunction function_;
};

class FunctionProvider final : public ToolProvider {
 public:
  FunctionProvider(std::vector<std::string> names, ToolFunction function)
      : names_(std::move(names)), function_(std::move(function)) {}
  Task<Result<std::unique_ptr<ToolSession>>> Open(TimePoint) override {
    co_return std::unique_ptr<ToolSession>(std::make_unique<FunctionSession>(names_, function_));
  }
  Task<void> Shutdown(TimePoint) override { co_return; }

 private:
  std::vector<std::string> names_;
  ToolFunction function_;
};

}  // namespace

std::unique_ptr<EnvironmentPool> AnswerPool(std::vector<Message> first) {
  return std::make_unique<Pool>(std::move(first));
}

std::unique_ptr<ToolProvider> FunctionTools(std::vector<std::string> names, ToolFunction function) {
  return std::make_unique<FunctionProvider>(std::move(names), std::move(function));
}

}  // namespace forebay::env
