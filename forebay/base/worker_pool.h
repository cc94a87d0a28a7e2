// WorkerPool: threads for work that would hold up a Loop, and Offload to await it there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/task.h"

namespace forebay {

// Runs jobs in the order of their arrival on its threads. The queue has no bound of its own: a
// coroutine awaits its job, so at most one job a coroutine is in it. Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  // Runs what is queued, then ends its threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(std::function<void()> job);
  int64_t queued() const;

 private:
  void Run();

  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> jobs_ FB_GUARDED_BY(mutex_);
  bool ending_ FB_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

// What `fn` returns, computed on one of the workers while the loop goes on; with no workers (null)
// at once. What `fn` refers to must live until the coroutine that awaits this goes on.
template <typename Fn>
Task<std::invoke_result_t<Fn>> Offload(Loop* loop, WorkerPool* workers, Fn fn) {
  using T = std::invoke_result_t<Fn>;
  if (workers == nullptr) co_return fn();
  Completion<T> done(*loop);
  workers->Post([done, run = &fn] { done.Set((*run)()); });
  auto wait = done.Wait();
  T value = co_await wait;
  co_return value;
}

}  // namespace forebay
