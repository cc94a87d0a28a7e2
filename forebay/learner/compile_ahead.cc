#include "forebay/learner/compile_ahead.h"

#include <optional>
#include <thread>
#include <utility>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"

namespace forebay::learner {

bool CompileAhead::Start(Work work) {
  if (busy_) return false;
  busy_ = true;
  thread_ = std::jthread([this, work = std::move(work)] {
    auto result = work();
    MutexLock lock(mutex_);
    result_ = std::move(result);
  });
  return true;
}

std::optional<Result<std::optional<CompileAhead::Shapes>>> CompileAhead::Take() {
  MutexLock lock(mutex_);
  if (!result_) return std::nullopt;
  busy_ = false;
  return std::exchange(result_, std::nullopt);
}

}  // namespace forebay::learner
