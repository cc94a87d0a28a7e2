#include "forebay/env/places.h"

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::env {

// In the frame of a coroutine that waits: takes it off the list, also when the coroutine is
// dropped.
class Places::Waiting {
 public:
  Waiting(std::shared_ptr<Places> places, TimePoint deadline)
      : places_(std::move(places)), ticket_(++places_->last_ticket_), turn_(places_->loop_) {
    places_->waiters_.emplace(ticket_, turn_);
    timer_ = places_->loop_.RunAt(deadline, [weak = places_->weak_from_this(), ticket = ticket_,
                                             turn = turn_] {
      const auto places = weak.lock();
      if (!places || places->waiters_.erase(ticket) == 0) return;
      turn.Set(DeadlineExceeded(fmt::format("no place came free in time: {} of {} = {} are taken",
                                            places->taken_, places->what_, places->places_max_)));
    });
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    places_->waiters_.erase(ticket_);
    places_->loop_.Cancel(timer_);
  }
  const OneShot<Result<Place>>& turn() const { return turn_; }

 private:
  std::shared_ptr<Places> places_;
  uint64_t ticket_;
  OneShot<Result<Place>> turn_;
  uint64_t timer_ = 0;
};

Task<Result<Places::Place>> Places::Take(std::shared_ptr<Places> self, TimePoint deadline) {
  if (!self->stopped_.ok()) co_return self->stopped_;
  const Waiting waiting(self, deadline);
  self->Admit();
  Result<Place> place = co_await waiting.turn().Wait();
  co_return std::move(place);
}

void Places::Stop(const Status& reason) {
  stopped_ = reason;
  for (const auto& [ticket, turn] : std::exchange(waiters_, {})) turn.Set(reason);
}

void Places::GiveBack() {
  --taken_;
  Admit();
}

void Places::Admit() {
  while (!waiters_.empty() && taken_ < places_max_) {
    const OneShot<Result<Place>> first = waiters_.begin()->second;
    waiters_.erase(waiters_.begin());
    ++taken_;
    first.Set(Place(shared_from_this()));
  }
}

}  // namespace forebay::env
