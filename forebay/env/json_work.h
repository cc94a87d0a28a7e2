// JsonWork: the reading and writing of JSON that is long enough to hold up a loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"

namespace forebay::env {

// Texts of up to this many bytes are read and written on the loop: that takes about as long as the
// way to another thread and back.
inline constexpr size_t kInlineJsonBytes = size_t{16} << 10;

// On one loop. A value: copy it freely; loop and workers (which end before the loop) outlive it.
class JsonWork {
 public:
  // No workers (null): everything is done on the loop.
  JsonWork(Loop& loop, WorkerPool* workers) : loop_(&loop), workers_(workers) {}

  bool IsLong(size_t bytes) const { return workers_ != nullptr && bytes > kInlineJsonBytes; }

  // What `fn` returns, a Result; for long texts from a worker while the loop goes on.
  // kDeadlineExceeded: it was not done in time. `fn` has to own what it refers to: it may run, or
  // wait for its turn, when nobody awaits it any more. Unlike with Offload the coroutine that
  // awaits this may be dropped.
  template <typename Fn>
  Task<std::invoke_result_t<Fn>> Run(size_t bytes, TimePoint deadline, Fn fn) const {
    using R = std::invoke_result_t<Fn>;
    if (!IsLong(bytes)) co_return fn();
    Loop* const loop = loop_;
    const OneShot<R> done(*loop);
    const bool bounded = deadline != TimePoint::max();
    const uint64_t timer = !bounded ? 0 : loop->RunAt(deadline, [done] {
      done.Set(DeadlineExceeded("a long JSON text was not read or written by the deadline"));
    });
    Post([done, job = std::make_shared<Fn>(std::move(fn))]() mutable {
      auto result = std::make_shared<R>((*job)());
      job.reset();  // a large document takes as long to free as to read
      return std::function<void()>([done, result] { done.Set(std::move(*result)); });
    });
    auto wait = done.Wait();
    R result = co_await wait;
    if (bounded) loop->Cancel(timer);
    co_return result;
  }

  // `job` on a worker, then what it returns on the loop. There must be workers.
  void Post(std::function<std::function<void()>()> job) const {
    workers_->Post([loop = loop_, job = std::move(job)] { loop->Post(job()); });
  }

  Loop& loop() const { return *loop_; }

 private:
  Loop* loop_;
  WorkerPool* workers_;
};

}  // namespace forebay::env
