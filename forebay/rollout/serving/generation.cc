// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/serving/generation.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"

namespace forebay::rollout::serving {

std::shared_ptr<Generation> Generation::Start(Loop& loop, Engine& engine,
                                              std::vector<GenerateRequest> requests, bool tokens) {
  std::shared_ptr<Generation> self(new Generation(loop, engine));
  {
    const MutexLock lock(self->mutex_);
    self->running_ = requests.size();
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (tokens) {
      requests[i].on_token = [self, i](const TokenEvent& event) {
        self->Add({.request = i, .what = event}, /*last=*/false);
      };
    }
    self->ids_.push_back(
        engine.Generate(std::move(requests[i]), [self, i](Result<GenerateResult> result) {
          self->Add({.request = i, .what = std::move(result)}, /*last=*/true);
        }));
  }
  return self;
}

void Generation::Add(GenerationEvent event, bool last) {
  const MutexLock lock(mutex_);
  events_.push_back(std::move(event));
  if (last) --running_;
  if (std::exchange(woken_, true)) return;
  // Under the lock: once the last event can be seen, the loop may be gone.
  loop_.Post([self = shared_from_this()] {
    {
      const MutexLock again(self->mutex_);
      self->woken_ = false;
    }
    if (self->waiter_) self->waiter_->Set(true);
  });
}

std::optional<GenerationEvent> Generation::TryNext() {
  const MutexLock lock(mutex_);
  if (events_.empty()) return std::nullopt;
  GenerationEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

Task<std::optional<GenerationEvent>> Generation::Next() {
  const std::shared_ptr<Generation> self = shared_from_this();
  while (true) {
    waiter_.emplace(loop_);
    std::optional<GenerationEvent> event = TryNext();
    if (event) co_return event;
    bool ended = false;
    {
      const MutexLock lock(mutex_);
      ended = running_ == 0 && events_.empty();
    }
    if (ended) co_return std::nullopt;
    auto waiting = waiter_->Wait();
    co_await waiting;
  }
}

size_t Generation::waiting_events() {
  const MutexLock lock(mutex_);
  return events_.size();
}

void Generation::Cancel() {
  for (const uint64_t id : ids_) engine_.Cancel(id);
}

}  // namespace forebay::rollout::serving
