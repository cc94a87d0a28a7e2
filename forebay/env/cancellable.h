// CancellablePool: any environments, of which nobody has to wait for an answer any more.
#pragma once

#include <memory>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env {

class CancellablePool : public EnvironmentPool {
 public:
  // Whatever waits for an environment, and whatever is asked for from now on, gets `reason` at
  // once. The environment itself may take its time: what it says then is dropped, and Shutdown ends
  // it. On the loop; the first reason counts.
  virtual void Cancel(const Status& reason) = 0;
};

// The same episodes as `inner` plays. A task that is dropped stays with `inner` to its end, so do
// not drop tasks, but cancel. Shutdown cancels, and then shuts `inner` down.
std::unique_ptr<CancellablePool> MakeCancellable(Loop& loop,
                                                 std::unique_ptr<EnvironmentPool> inner);

}  // namespace forebay::env
