#include "forebay/base/worker_pool.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"

namespace forebay {

WorkerPool::WorkerPool(int threads) {
  FB_CHECK(threads > 0, "a pool has threads");
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Post(std::function<void()> job) {
  {
    const MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.NotifyOne();
}

int64_t WorkerPool::queued() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(jobs_.size());
}

void WorkerPool::Run() {
  while (true) {
    std::function<void()> job;
    {
      const MutexLock lock(mutex_);
      while (jobs_.empty() && !ending_) wake_.WaitUntil(mutex_, Now() + std::chrono::hours(1));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace forebay
