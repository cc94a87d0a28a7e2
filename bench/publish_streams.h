// What the publish benchmark watches: streams that decode without end, and when one of them got its
// tokens, of which weights.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/rollout/engine.h"

namespace forebay::bench {

inline constexpr int64_t kPublishSlots = 16, kPublishContext = 512;

struct Token {
  TimePoint at;
  int64_t policy_version = 0;
  uint64_t request = 0;
};

// Keeps every slot busy. Ends with the requests that run; Stop, then Engine::Shutdown, before the
// end.
class Streams {
 public:
  // `on_token` hears of the tokens of one stream, on the engine's thread.
  Streams(rollout::Engine& engine, std::function<void(const Token&)> on_token);
  int64_t cut() const;  // requests that failed
  void Stop();

 private:
  void Start(int64_t stream);

  rollout::Engine& engine_;
  const std::function<void(const Token&)> on_token_;
  uint64_t seed_ = 0;  // the engine's thread, after the constructor
  mutable Mutex mutex_;
  int64_t cut_ FB_GUARDED_BY(mutex_) = 0;
  bool stopping_ FB_GUARDED_BY(mutex_) = false;
};

struct Timing {
  double taken_ms = 0;  // until the stream got its first token of the new version
  double stall_ms = 0, step_ms = 0;
  bool continued = false;  // in the middle of a sequence
};
// Of weights that were published then and are this version.
Timing Measure(const std::vector<Token>& tokens, TimePoint published, int64_t version);

}  // namespace forebay::bench
