// For tests of environments with tools: an inner environment that answers, tools that do as told.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/tools.h"

namespace forebay::env {

// One task: `first` messages; a step is done and gives reward 1 if the action is "right".
std::unique_ptr<EnvironmentPool> AnswerPool(std::vector<Message> first);

using ToolFunction = std::function<Result<ToolResult>(const ToolCall&)>;
// Tools of those names that call `function`.
std::unique_ptr<ToolProvider> FunctionTools(std::vector<std::string> names, ToolFunction function);

// Runs a task to its end and gives its value.
template <typename T>
T Await(Loop& loop, Task<T> task) {
  std::optional<T> value;
  loop.Spawn(
      [](Task<T> t, std::optional<T>* out) -> Task<void> {
        T result = co_await std::move(t);
        out->emplace(std::move(result));
      }(std::move(task), &value),
      [&loop] { loop.Stop(); });
  loop.Run();
  return std::move(*value);
}

}  // namespace forebay::env
