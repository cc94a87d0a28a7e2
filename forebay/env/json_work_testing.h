// For tests that long JSON is read and written by a worker and not by the loop.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "forebay/base/loop.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"

namespace forebay::env {

// One worker that is kept busy until it is released: what is left to it waits, and can be seen to.
class HeldWorkers {
 public:
  HeldWorkers() : pool_(1) {
    pool_.Post([released = release_.get_future().share()] { released.wait(); });
    while (pool_.queued() > 0) std::this_thread::yield();
  }
  ~HeldWorkers() { Release(); }
  HeldWorkers(const HeldWorkers&) = delete;
  HeldWorkers& operator=(const HeldWorkers&) = delete;

  void Release() {
    if (!std::exchange(released_, true)) release_.set_value();
  }
  WorkerPool* pool() { return &pool_; }
  bool waits() const { return pool_.queued() > 0; }

 private:
  std::promise<void> release_;
  bool released_ = false;
  WorkerPool pool_;
};

inline Task<void> UntilItWaits(Loop* loop, const HeldWorkers* held) {
  while (!held->waits()) co_await loop->SleepUntil(loop->Now() + std::chrono::milliseconds(1));
}

// Runs the task to its end and gives its value; it has to leave something to the worker, and while
// that waits there the timers of the loop must run.
template <typename T>
T AwaitHeld(Loop& loop, HeldWorkers& held, Task<T> task) {
  std::optional<T> value;
  loop.Spawn(
      [](Task<T> t, std::optional<T>* out) -> Task<void> {
        T result = co_await std::move(t);
        out->emplace(std::move(result));
      }(std::move(task), &value),
      [&loop] { loop.Stop(); });
  loop.Spawn([](Loop* l, HeldWorkers* h, const std::optional<T>* out) -> Task<void> {
    Task<void> waiting = UntilItWaits(l, h);
    co_await std::move(waiting);
    for (int turn = 0; turn < 20; ++turn) {
      co_await l->SleepUntil(l->Now() + std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(out->has_value()) << "it came to its end without the worker";
    h->Release();
  }(&loop, &held, &value));
  loop.Run();
  return std::move(*value);
}

}  // namespace forebay::env
