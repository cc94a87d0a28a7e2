// The environment contract: one Environment is one episode of a task the agent acts in.
//
// Implementations: built in (builtin.h), a process over stdio (subprocess.h), an OpenEnv server
// (openenv.h), and any of these with tools (tool_environment.h). All run on a Loop and never block
// it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::env {

struct Message {
  std::string role;  // system, user, tool; assistant: a demonstration
  std::string content;
  friend bool operator==(const Message&, const Message&) = default;
};

struct ResetRequest {
  int64_t task_id = 0;
  std::string split = "train";  // train or eval
  uint64_t seed = 0;
};

struct StepResult {
  std::vector<Message> messages;  // what the agent sees next
  // Components earned by this step; they add up over the episode.
  std::map<std::string, double> rewards;
  bool done = false;
  std::string tool;       // the tool that answered, for audit; "" if none
  int64_t reward_us = 0;  // of the step's time, spent on grading
};

// One episode. Calls come one at a time. Errors are typed by who is at fault:
//   kDeadlineExceeded:   it did not answer in time       -> outcome env_timeout
//   kUnavailable:        its process died                -> outcome env_error
//   kDataLoss:           it answered garbage or too much -> outcome env_error
//   kInternal:           it reported an exception        -> outcome env_error
//   kFailedPrecondition: its grader failed               -> outcome grader_error
//   kCancelled:          we gave it up (Shutdown)        -> outcome aborted
//   anything else:       what it does makes no sense     -> outcome env_error
// After an error only destruction is allowed; that releases whatever is still running.
class Environment {
 public:
  virtual ~Environment() = default;
  // The first messages of the conversation.
  virtual Task<Result<std::vector<Message>>> Reset(ResetRequest request, TimePoint deadline) = 0;
  virtual Task<Result<StepResult>> Step(std::string action, TimePoint deadline) = 0;
  // The tools that the model should be told of by its chat template, after Reset: a JSON array in
  // OpenAI's form; "" for none.
  virtual std::string tools_json() const { return ""; }
};

// Makes episodes of one configured environment; lives on the loop.
class EnvironmentPool {
 public:
  virtual ~EnvironmentPool() = default;
  // An idle environment; waits for a place if all are taken. kDeadlineExceeded, kUnavailable
  // when the environment cannot be started (with its command and last stderr lines).
  virtual Task<Result<std::unique_ptr<Environment>>> Acquire(TimePoint deadline) = 0;
  // Ends every process; awaits them until the deadline, then kills. Call once, before destruction.
  virtual Task<void> Shutdown(TimePoint deadline) = 0;
};

}  // namespace forebay::env
