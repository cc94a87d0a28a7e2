// ReaderWatch: the writing end of a stream, and what happens when its client does not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/generation.h"

namespace forebay::rollout::serving {

// Events of one request that may wait for a client to read what came before.
inline constexpr size_t kUnreadEventsMax = 16384;
// A client that takes this much has read.
inline constexpr size_t kReadBytes = size_t{8} << 10;

// A client that does not read holds slots of the engine for an answer that nobody sees. It cannot
// be told from a slow one, so it may keep them while nobody else wants them; while other requests
// wait, it loses them after `stalled_reader_deadline` without a kReadBytes taken. Its connection
// stays (until the server's write_deadline): a client that reads on finds out.
//
// On the loop. Everything must outlive it.
class ReaderWatch {
 public:
  struct Options {
    Duration stalled_reader_deadline{};  // 0: none
  };
  ReaderWatch(Loop& loop, const Engine& engine, std::shared_ptr<Generation> generation,
              const Options& options);
  ~ReaderWatch();
  ReaderWatch(const ReaderWatch&) = delete;
  ReaderWatch& operator=(const ReaderWatch&) = delete;

  // As HttpExchange::Write.
  Task<Status> Write(HttpExchange& exchange, std::string bytes);

  // Why the generation was cancelled here (kCancelled); OK: it was not.
  const Status& verdict() const { return verdict_; }

 private:
  void LookLater();
  void Look();

  Loop& loop_;
  const Engine& engine_;
  const std::shared_ptr<Generation> generation_;
  const Options options_;
  TimePoint writing_since_ = TimePoint::max();
  Status verdict_;
  uint64_t timer_ = 0;
};

}  // namespace forebay::rollout::serving
