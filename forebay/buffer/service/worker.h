// Worker: one thread that runs what may block, in order.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "forebay/base/mutex.h"

namespace forebay::buffer {

class Worker {
 public:
  Worker();
  // Runs what is queued, then ends.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Post(std::function<void()> job);

 private:
  void Run();

  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> jobs_ FB_GUARDED_BY(mutex_);
  bool ending_ FB_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace forebay::buffer
