// CompileAhead: one piece of work at a time on a thread of its own, for shapes that are planned and
// compiled while training goes on.
//
// One owner. Nothing here waits, except the destructor, for the work that is under way (a
// compilation cannot be interrupted).
#pragma once

#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {

class CompileAhead {
 public:
  using Shapes = std::vector<BucketShape>;
  // Shapes whose programs are compiled on return; nullopt: nothing to change.
  using Work = std::function<Result<std::optional<Shapes>>()>;

  CompileAhead() = default;
  ~CompileAhead() = default;  // joins
  CompileAhead(const CompileAhead&) = delete;
  CompileAhead& operator=(const CompileAhead&) = delete;

  // False (and nothing happens) while earlier work runs or its result was not taken.
  bool Start(Work work);

  // The result of the work, once; nullopt while there is none.
  std::optional<Result<std::optional<Shapes>>> Take();

 private:
  Mutex mutex_;
  bool busy_ = false;  // from Start to Take; the owner's
  std::optional<Result<std::optional<Shapes>>> result_ FB_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: joins before the result goes
};

}  // namespace forebay::learner
