// Completions: acknowledgements on their way from the buffer's threads to the I/O thread.
//
// An append's callback is two words (this and a slot), so that it costs no allocation. The object
// lives until the last of them was called, even if the server is gone by then.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"

namespace forebay::buffer {

class Completions {
 public:
  struct Done {
    uint32_t slot;
    Status status;
  };

  // `wake` is called when the first one arrives after a Drain; from any thread, not after Orphan.
  explicit Completions(std::function<void()> wake) : wake_(std::move(wake)) {}
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // One more callback will come.
  void Expect() { references_.fetch_add(1, std::memory_order_relaxed); }
  // It came.
  void Push(uint32_t slot, Status status) {
    {
      const MutexLock lock(mutex_);
      if (!orphaned_) {
        const bool first = done_.empty();
        done_.push_back({slot, std::move(status)});
        if (first) wake_();
      }
    }
    Unreference();
  }
  // Appends what has come to `out`.
  void Drain(std::vector<Done>& out) {
    const MutexLock lock(mutex_);
    if (out.empty()) {
      out.swap(done_);
    } else {
      for (Done& done : done_) out.push_back(std::move(done));
      done_.clear();
    }
  }
  // The owner lets go: nothing is delivered any more.
  void Orphan() {
    {
      const MutexLock lock(mutex_);
      orphaned_ = true;
    }
    Unreference();
  }

 private:
  ~Completions() = default;
  void Unreference() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  std::function<void()> wake_;
  std::atomic<int64_t> references_{1};  // the owner's, and one for each callback to come
  Mutex mutex_;
  std::vector<Done> done_ FB_GUARDED_BY(mutex_);
  bool orphaned_ FB_GUARDED_BY(mutex_) = false;
};

struct DeleteCompletions {
  void operator()(Completions* completions) const { completions->Orphan(); }
};

}  // namespace forebay::buffer
