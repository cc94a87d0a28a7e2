// A connection's keeper: the thread that finds the server again, and sees to what has no caller.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/client_connection.h"
#include "forebay/buffer/service/client_session.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;

constexpr Duration kTickMin = milliseconds(10);
constexpr Duration kTickMax = milliseconds(500);
// A server's own "too late" is worth waiting for a little.
constexpr milliseconds kGrace{500};
constexpr milliseconds kBackoffMin{10};
constexpr milliseconds kBackoffMax{1000};
constexpr Duration kAttemptMin = std::chrono::seconds(1);
constexpr Duration kAttemptMax = std::chrono::seconds(5);

// Reconnecting clients should not come all at once.
Duration Jitter(Duration backoff) {
  thread_local std::minstd_rand random(std::random_device{}());
  return backoff / 2 + backoff * static_cast<int64_t>(random() % 1000) / 1000;
}

}  // namespace

void ClientConnection::Opened(Connected connected) {
  const Welcome welcome = session_.welcome();
  credit_bytes_ = welcome.credit_bytes;
  ping_after_ = milliseconds(welcome.ping_ms);
  idle_deadline_ = milliseconds(welcome.idle_ms);
  // Often enough to answer pings in time.
  tick_ = std::clamp(std::min(ping_after_, idle_deadline_) / 4, kTickMin, kTickMax);
  stream_ = std::move(connected.stream);
  reader_ = FrameReader(static_cast<uint32_t>(session_.options().reply_bytes_max));
  state_ = State::kOpen;
  last_in_ = last_ping_ = Now();
  outstanding_bytes_ = 0;
  area_ = std::move(connected.area);
  control_.clear();
  // Everything that has no answer, in the order of the calls.
  queue_.clear();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.credit = false;
    slot.shared.reset();  // it is sent from the caller's memory now
    if (slot.state == SlotState::kFree) continue;
    if (slot.pending == nullptr) {
      FreeSlot(slot);
      continue;
    }
    counts_.resent_appends += static_cast<int64_t>(slot.state == SlotState::kSent);
    slot.state = SlotState::kQueued;
    slot.leaving = false;
    queue_.push_back(i);
  }
  std::ranges::sort(queue_, {},
                    [this](uint32_t i) FB_REQUIRES(mutex_) { return slots_[i].request; });
}

void ClientConnection::FailOpen(const Status& why, bool appends, Finished& finished) {
  for (Slot& slot : slots_) {
    if (slot.state == SlotState::kFree || slot.state == SlotState::kSending) continue;
    if (slot.type != FrameType::kAppend || appends || slot.pending == nullptr) {
      Complete(slot, why, finished);
    }
  }
  std::erase_if(queue_, [this](uint32_t i)
                            FB_REQUIRES(mutex_) { return slots_[i].state == SlotState::kFree; });
}

void ClientConnection::Break(const Status& why, Finished& finished) {
  if (state_ != State::kOpen) return;
  state_ = State::kBroken;
  last_error_ = Unavailable(why.message());
  broken_since_ = Now();
  shutdown(stream_->fd(), SHUT_RDWR);  // whoever waits on it looks
  FailOpen(last_error_, /*appends=*/false, finished);
  keeper_wake_.NotifyAll();
}

void ClientConnection::CloseFor(const Status& why, Finished& finished) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kOpen) shutdown(stream_->fd(), SHUT_RDWR);
  state_ = State::kClosed;
  last_error_ = why;
  FailOpen(why, /*appends=*/true, finished);
  keeper_wake_.NotifyAll();
}

void ClientConnection::Tick(Finished& finished) {
  const TimePoint now = Now();
  for (Slot& slot : slots_) {
    if (slot.pending == nullptr || slot.pending->done == nullptr) continue;
    if (slot.state == SlotState::kSending || now < slot.pending->deadline + kGrace) continue;
    const Status late = DeadlineExceeded("no acknowledgement in time");
    if (slot.state == SlotState::kQueued) {
      std::erase(queue_, static_cast<uint32_t>(&slot - slots_.data()));
      Complete(slot, late, finished);
      continue;
    }
    // The slot stays until the server's answer: its bytes count as outstanding there.
    Pending* pending = std::exchange(slot.pending, nullptr);
    pending->status = late;
    --open_;
    --open_async_;
    ++untold_;
    finished.async.push_back(pending);
  }
  if (state_ != State::kOpen) return;
  if (now - last_in_ > idle_deadline_) {
    Break(Unavailable("the buffer's server does not answer pings"), finished);
  } else if (now - std::max(last_in_, last_ping_) > ping_after_) {
    last_ping_ = now;
    const FrameHeaderBytes ping = EncodeFrameHeader({.type = FrameType::kPing});
    control_.append(ping.data(), ping.size());
    Send();
  }
}

void ClientConnection::Keep() {
  Duration backoff = Duration::zero();
  Finished finished;
  mutex_.Lock();
  TimePoint next_tick = Now() + tick_;
  while (state_ != State::kClosed) {
    if (Now() >= next_tick) {
      next_tick = Now() + tick_;
      Tick(finished);
      // Pings are answered even if nobody calls.
      if (state_ == State::kOpen && !reading_) Lead(nullptr, Now());
    } else if (state_ == State::kBroken && !reading_ && !sending_) {
      Reconnect(backoff);
    } else if (state_ == State::kOpen && !reading_ && open_async_ > 0) {
      Lead(nullptr, next_tick);
    } else {
      keeper_wake_.WaitUntil(mutex_, next_tick);
    }
    if (!finished.empty()) {
      mutex_.Unlock();
      Tell(finished);
      mutex_.Lock();
    }
  }
  // A caller may be reading or sending still; it leaves by itself.
  mutex_.Unlock();
}

void ClientConnection::Reconnect(Duration& backoff) {
  const TimePoint deadline = broken_since_ + session_.options().reconnect_deadline;
  const Duration attempt = std::clamp<Duration>(deadline - Now(), kAttemptMin, kAttemptMax);
  mutex_.Unlock();
  Result<Connected> connected = session_.Connect(purpose_, Now() + attempt);
  mutex_.Lock();
  if (state_ == State::kClosed) return;
  Finished finished;
  if (connected.ok()) {
    backoff = Duration::zero();
    ++counts_.reconnects;
    Opened(*std::move(connected));
    Send();
    if (!reading_) HandOn(finished);
  } else if (connected.status().code() == StatusCode::kFailedPrecondition ||
             connected.status().code() == StatusCode::kUnimplemented) {
    CloseFor(connected.status(), finished);
  } else {
    last_error_ = Unavailable(connected.status().message());
    if (Now() >= deadline) {
      FailOpen(last_error_, /*appends=*/true, finished);
      broken_since_ = Now();
    }
    backoff = std::clamp<Duration>(backoff * 2, kBackoffMin, kBackoffMax);
    const TimePoint until = Now() + Jitter(backoff);
    while (state_ == State::kBroken && keeper_wake_.WaitUntil(mutex_, until)) {
    }
  }
  if (!finished.empty()) {
    mutex_.Unlock();
    Tell(finished);
    mutex_.Lock();
  }
}

}  // namespace forebay::buffer
