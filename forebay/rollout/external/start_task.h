// StartTask: a coroutine that its owner may drop.
#pragma once

#include <coroutine>
#include <utility>

#include "forebay/base/task.h"

namespace forebay::rollout::external {

// Runs the task until it first waits; whoever drops it drops what it waits for.
inline void StartTask(Task<void>& task) {
  auto awaiter = std::move(task).operator co_await();
  awaiter.await_suspend(std::noop_coroutine()).resume();
}

}  // namespace forebay::rollout::external
