// Places: how many may be in at once; others wait in order, until their deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::env {

// On one loop. Copy the shared pointer freely: a place keeps it alive.
class Places : public std::enable_shared_from_this<Places> {
 public:
  // One place, given back by its destruction.
  class Place {
   public:
    explicit Place(std::shared_ptr<Places> places) : places_(std::move(places)) {}
    Place(Place&&) noexcept = default;
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (places_) places_->GiveBack();
    }

   private:
    std::shared_ptr<Places> places_;
  };

  // `what` names the limit in errors: "episodes_max".
  Places(Loop& loop, int64_t places_max, std::string what)
      : loop_(loop), places_max_(places_max), what_(std::move(what)) {}

  // kDeadlineExceeded; after Stop its reason. The coroutine may be dropped.
  static Task<Result<Place>> Take(std::shared_ptr<Places> self, TimePoint deadline);
  // Fails who waits, now and later.
  void Stop(const Status& reason);

  int64_t taken() const { return taken_; }
  size_t waiting() const { return waiters_.size(); }

 private:
  class Waiting;
  void GiveBack();
  void Admit();

  Loop& loop_;
  const int64_t places_max_;
  const std::string what_;
  Status stopped_;
  int64_t taken_ = 0;
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, OneShot<Result<Place>>> waiters_;
};

}  // namespace forebay::env
