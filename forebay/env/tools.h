// Tools that a model may call by name: what an environment offers beside its own answers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/tool_calls.h"

namespace forebay::env {

struct ToolSpec {
  std::string name;
  std::string description;
  std::string parameters = R"({"type":"object"})";  // a JSON schema, an object
};

// What the model is told.
struct ToolResult {
  std::string text;
  bool error = false;  // the call was wrong, or the tool could not do it: the model may try again
};

// The tools of one episode. On a loop, one call at a time; a coroutine that waits may be dropped.
class ToolSession {
 public:
  virtual ~ToolSession() = default;
  virtual const std::vector<ToolSpec>& tools() const = 0;
  // A tool of tools(); its arguments are unchecked. What the model did wrong is a result with
  // `error`; a Status is a failure that is not the model's fault (as in environment.h), and ends
  // the episode.
  virtual Task<Result<ToolResult>> Call(ToolCall call, TimePoint deadline) = 0;
};

// Makes sessions; lives on the loop.
class ToolProvider {
 public:
  virtual ~ToolProvider() = default;
  virtual Task<Result<std::unique_ptr<ToolSession>>> Open(TimePoint deadline) = 0;
  // Ends what runs, until the deadline, then by force. Once, before destruction.
  virtual Task<void> Shutdown(TimePoint deadline) = 0;
};

// The tools as OpenAI's API and chat templates want them: a JSON array.
std::string ToolsJson(std::span<const ToolSpec> tools);

// The same as instructions, for models whose chat template knows no tools: calls between
// <tool_call> tags.
std::string ToolsPrompt(std::span<const ToolSpec> tools);

}  // namespace forebay::env
