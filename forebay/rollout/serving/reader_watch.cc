// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/serving/reader_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/generation.h"

namespace forebay::rollout::serving {

ReaderWatch::ReaderWatch(Loop& loop, const Engine& engine, std::shared_ptr<Generation> generation,
                         const Options& options)
    : loop_(loop), engine_(engine), generation_(std::move(generation)), options_(options) {
  LookLater();
}

ReaderWatch::~ReaderWatch() {
  if (timer_ != 0) loop_.Cancel(timer_);
}

void ReaderWatch::LookLater() {
  if (options_.stalled_reader_deadline <= Duration::zero()) return;
  timer_ = loop_.RunAt(loop_.Now() + options_.stalled_reader_deadline / 4, [this] {
    timer_ = 0;
    Look();
  });
}

void ReaderWatch::Look() {
  const size_t unread = generation_->waiting_events();
  const bool stalled = writing_since_ != TimePoint::max() &&
                       loop_.Now() - writing_since_ >= options_.stalled_reader_deadline;
  if (unread > kUnreadEventsMax) {
    verdict_ = Cancelled(fmt::format(
        "this stream was ended because its client did not read it: more than {} tokens wait",
        kUnreadEventsMax));
  } else if (stalled && engine_.stats().waiting > 0) {
    verdict_ = Cancelled(fmt::format(
        "this stream was ended because its client did not read it for {:.3g} s while other "
        "requests waited",
        Seconds(options_.stalled_reader_deadline)));
  } else {
    return LookLater();
  }
  generation_->Cancel();
}

Task<Status> ReaderWatch::Write(HttpExchange& exchange, std::string bytes) {
  Status status;
  for (size_t at = 0; at < bytes.size() && status.ok(); at += kReadBytes) {
    writing_since_ = loop_.Now();
    Task<Status> writing = exchange.Write(bytes.substr(at, kReadBytes));
    status = co_await std::move(writing);
    writing_since_ = TimePoint::max();
  }
  co_return status;
}

}  // namespace forebay::rollout::serving
