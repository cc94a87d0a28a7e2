// Generation: requests to the engine, and what they give as one stream on a loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"

namespace forebay::rollout::serving {

struct GenerationEvent {
  size_t request = 0;  // its place among the requests
  std::variant<TokenEvent, Result<GenerateResult>> what;
};

// Made and used on the loop; the engine calls from its own thread. Engine and loop must live until
// Next has given nullopt.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // `tokens`: each token is told as it comes, else only results.
  static std::shared_ptr<Generation> Start(Loop& loop, Engine& engine,
                                           std::vector<GenerateRequest> requests, bool tokens);

  // The next event; nullopt when every request has ended. One waiter at a time.
  Task<std::optional<GenerationEvent>> Next();
  // What Next would give without waiting.
  std::optional<GenerationEvent> TryNext();
  // Events that nobody has taken yet.
  size_t waiting_events();
  // Cancels what has not ended; its results (kCancelled) still come.
  void Cancel();

 private:
  Generation(Loop& loop, Engine& engine) : loop_(loop), engine_(engine) {}
  void Add(GenerationEvent event, bool last);

  Loop& loop_;
  Engine& engine_;
  std::vector<uint64_t> ids_;
  std::optional<OneShot<bool>> waiter_;  // on the loop
  Mutex mutex_;
  std::deque<GenerationEvent> events_ FB_GUARDED_BY(mutex_);
  size_t running_ FB_GUARDED_BY(mutex_) = 0;
  bool woken_ FB_GUARDED_BY(mutex_) = false;  // a wake-up is on its way
};

}  // namespace forebay::rollout::serving
