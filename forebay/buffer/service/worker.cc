#include "forebay/buffer/service/worker.h"

#include <chrono>
#include <functional>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"

namespace forebay::buffer {

Worker::Worker() : thread_([this] { Run(); }) {}

Worker::~Worker() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void Worker::Post(std::function<void()> job) {
  {
    const MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.NotifyOne();
}

void Worker::Run() {
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

}  // namespace forebay::buffer
