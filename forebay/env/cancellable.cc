// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/env/cancellable.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"

namespace forebay::env {
namespace {

struct Shared {
  Loop& loop;
  std::unique_ptr<EnvironmentPool> inner;
  Status cancelled;  // why, once it is
  std::map<uint64_t, std::function<void()>> waiting;
  uint64_t last_ticket = 0;

  void Cancel(const Status& reason) {
    if (!cancelled.ok()) return;
    cancelled = reason;
    for (const auto& [ticket, cancel] : std::exchange(waiting, {})) cancel();
  }
};

// `alive` is what the task refers to.
template <typename R>
Task<void> PlayOn(Task<R> task, OneShot<R> done, std::shared_ptr<void> alive) {
  const std::shared_ptr<void> kept = std::move(alive);
  R result = co_await std::move(task);
  done.Set(std::move(result));
}

// What the task gives, unless it is cancelled before; then it runs on by itself.
template <typename R>
Task<R> UnlessCancelled(std::shared_ptr<Shared> shared, Task<R> task, std::shared_ptr<void> alive) {
  if (!shared->cancelled.ok()) co_return shared->cancelled;
  const OneShot<R> done(shared->loop);
  const uint64_t ticket = ++shared->last_ticket;
  shared->waiting.emplace(ticket, [done, s = shared.get()] { done.Set(R(s->cancelled)); });
  shared->loop.Spawn(PlayOn<R>(std::move(task), done, std::move(alive)));
  auto wait = done.Wait();
  R result = co_await wait;
  shared->waiting.erase(ticket);
  co_return result;
}

class CancellableEnvironment final : public Environment {
 public:
  CancellableEnvironment(std::shared_ptr<Shared> shared, std::unique_ptr<Environment> inner)
      : shared_(std::move(shared)), inner_(std::move(inner)) {}

  Task<Result<std::vector<Message>>> Reset(ResetRequest request, TimePoint deadline) override {
    return UnlessCancelled(shared_, inner_->Reset(std::move(request), deadline), inner_);
  }
  Task<Result<StepResult>> Step(std::string action, TimePoint deadline) override {
    return UnlessCancelled(shared_, inner_->Step(std::move(action), deadline), inner_);
  }
  std::string tools_json() const override { return inner_->tools_json(); }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Environment> inner_;
};

class Pool final : public CancellablePool {
 public:
  explicit Pool(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Task<Result<std::unique_ptr<Environment>>> Acquire(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    Task<Result<std::unique_ptr<Environment>>> acquiring =
        UnlessCancelled(shared, shared->inner->Acquire(deadline), shared);
    Result<std::unique_ptr<Environment>> inner = co_await std::move(acquiring);
    if (!inner.ok()) co_return inner.status();
    co_return std::unique_ptr<Environment>(
        std::make_unique<CancellableEnvironment>(shared, std::move(*inner)));
  }

  void Cancel(const Status& reason) override { shared_->Cancel(reason); }

  Task<void> Shutdown(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    shared->Cancel(Cancelled("the environment pool is shut down"));
    Task<void> ending = shared->inner->Shutdown(deadline);
    co_await std::move(ending);
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<CancellablePool> MakeCancellable(Loop& loop,
                                                 std::unique_ptr<EnvironmentPool> inner) {
  return std::make_unique<Pool>(
      std::make_shared<Shared>(Shared{.loop = loop, .inner = std::move(inner)}));
}

}  // namespace forebay::env
