#include "forebay/buffer/service/client_connection.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/service/client_area.h"
#include "forebay/buffer/service/client_session.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/signal.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {
namespace {

// A request's number is a counter and, in the low bits, its slot.
constexpr int kSlotBits = 20;
constexpr size_t kScratchBytes = size_t{64} << 10;

}  // namespace

ClientConnection::ClientConnection(ClientSession& session, Purpose purpose)
    : session_(session),
      purpose_(purpose),
      reader_(static_cast<uint32_t>(session.options().reply_bytes_max)),
      scratch_(kScratchBytes) {}

ClientConnection::~ClientConnection() {
  Close(Cancelled("the client was closed"));
  if (keeper_.joinable()) keeper_.join();
}

Status ClientConnection::Connect(TimePoint deadline) {
  FB_ASSIGN_OR_RETURN(Connected connected, session_.Connect(purpose_, deadline));
  const MutexLock lock(mutex_);
  Opened(std::move(connected));
  keeper_ = std::thread([this] { Keep(); });
  return OkStatus();
}

std::optional<uint64_t> ClientConnection::Place(const Pending& pending) {
  if (area_ == nullptr || state_ != State::kOpen || pending.header.type != FrameType::kAppend) {
    return std::nullopt;
  }
  const std::shared_ptr<ClientArea> area = area_;
  mutex_.Unlock();
  const std::optional<uint64_t> shared = area->Put(pending.payload);
  mutex_.Lock();
  // Connected again meanwhile: nobody looks into that one any more.
  return area == area_ ? shared : std::nullopt;
}

void ClientConnection::Enqueue(Pending& pending, std::optional<uint64_t> shared) {
  if (free_slots_.empty()) {
    FB_CHECK(slots_.size() < (size_t{1} << kSlotBits), "a million open requests");
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  pending.slot = free_slots_.back();
  free_slots_.pop_back();
  pending.header.length = static_cast<uint32_t>(pending.payload.size());
  pending.header.request = (next_request_++ << kSlotBits) | pending.slot;
  slots_[pending.slot] = {.pending = &pending,
                          .request = pending.header.request,
                          .state = SlotState::kQueued,
                          .type = pending.header.type,
                          .table = pending.header.table,
                          .bytes = pending.header.length,
                          .shared = shared};
  queue_.push_back(pending.slot);
  ++open_;
  if (pending.done != nullptr) ++open_async_;
}

void ClientConnection::FreeSlot(Slot& slot) {
  if (slot.credit) outstanding_bytes_ -= slot.bytes;
  if (slot.shared.has_value()) area_->Free(*slot.shared, slot.bytes);
  const auto index = static_cast<uint32_t>(&slot - slots_.data());
  slot = Slot();
  free_slots_.push_back(index);
}

void ClientConnection::AddWaiter(Pending& pending) {
  pending.older = newest_;
  (newest_ == nullptr ? oldest_ : newest_->newer) = &pending;
  newest_ = &pending;
}

void ClientConnection::RemoveWaiter(Pending& pending) {
  (pending.older == nullptr ? oldest_ : pending.older->newer) = pending.newer;
  (pending.newer == nullptr ? newest_ : pending.newer->older) = pending.older;
  pending.older = pending.newer = nullptr;
}

void ClientConnection::Complete(Slot& slot, Status status, Finished& finished) {
  Pending* pending = slot.pending;
  if (slot.state == SlotState::kSending && pending != nullptr) {
    // The sender's call into the kernel has not returned: the bytes are not the caller's again yet.
    pending->status = std::move(status);
    slot.answered = true;
    return;
  }
  if (slot.type == FrameType::kAppend) {
    counts_.appends += static_cast<int64_t>(status.ok());
  }
  FreeSlot(slot);
  if (pending == nullptr) return;
  --open_;
  pending->status = std::move(status);
  if (pending->done != nullptr) {
    --open_async_;
    ++untold_;
    finished.async.push_back(pending);
  } else {
    RemoveWaiter(*pending);
    if (pending != leader_) finished.wake.Add(pending->slot);
    pending->signal.Set(Signal::kDone);  // the last touch
  }
  if (open_ == 0) idle_.NotifyAll();
}

void ClientConnection::Tell(Finished& finished) {
  const Finished telling = std::exchange(finished, {});
  bells_.Ring(telling.wake);
  for (Pending* pending : telling.async) {
    const std::unique_ptr<Pending> owned(pending);
    owned->done(std::move(owned->status));
  }
  const auto told = static_cast<int64_t>(telling.async.size());
  if (told == 0) return;
  const MutexLock lock(mutex_);
  untold_ -= told;
  if (open_ == 0 && untold_ == 0) idle_.NotifyAll();
}

bool ClientConnection::Abandon(Pending& pending) {
  Slot& slot = slots_[pending.slot];
  switch (slot.state) {
    case SlotState::kSending:
      slot.leaving = true;
      return false;
    case SlotState::kQueued:
      std::erase(queue_, pending.slot);
      FreeSlot(slot);
      break;
    default:
      slot.pending = nullptr;  // kept until its answer, for the credit
      break;
  }
  RemoveWaiter(pending);
  --open_;
  if (open_ == 0) idle_.NotifyAll();
  return true;
}

Status ClientConnection::Call(Pending& pending) {
  Finished finished;
  mutex_.Lock();
  const std::optional<uint64_t> shared = Place(pending);
  if (state_ == State::kClosed) {
    Status closed = last_error_;
    mutex_.Unlock();
    return closed;
  }
  Enqueue(pending, shared);
  AddWaiter(pending);
  Send(&pending);
  // A slot that is not ours any more: answered.
  while (slots_[pending.slot].pending == &pending) {
    const TimePoint now = Now();
    if (now >= pending.deadline && Abandon(pending)) {
      pending.status = DeadlineExceeded(
          state_ == State::kOpen ? "the buffer's server did not answer in time"
                                 : "the buffer's server is not there: " + last_error_.message());
      // It may have been told to read for all.
      if (state_ == State::kOpen && !reading_) HandOn(finished);
      break;
    }
    if (state_ == State::kOpen && !reading_ && now < pending.deadline &&
        !slots_[pending.slot].answered) {
      Lead(&pending, pending.deadline);
      continue;
    }
    mutex_.Unlock();
    const TimePoint until = std::max(pending.deadline, now + std::chrono::milliseconds(5));
    if (bells_.Wait(pending.signal, pending.slot, until) == Signal::kDone)
      return std::move(pending.status);
    mutex_.Lock();
  }
  mutex_.Unlock();
  Tell(finished);
  return std::move(pending.status);
}

void ClientConnection::CallAsync(std::unique_ptr<Pending> pending) {
  mutex_.Lock();
  const std::optional<uint64_t> shared = Place(*pending);
  if (state_ == State::kClosed) {
    Status closed = last_error_;
    mutex_.Unlock();
    pending->done(std::move(closed));
    return;
  }
  Enqueue(*pending.release(), shared);
  Send();
  if (!reading_) keeper_wake_.NotifyAll();
  mutex_.Unlock();
}

bool ClientConnection::WaitIdle(TimePoint deadline) {
  const MutexLock lock(mutex_);
  while (open_ > 0 || untold_ > 0) {
    if (!idle_.WaitUntil(mutex_, deadline)) return open_ == 0 && untold_ == 0;
  }
  return true;
}

void ClientConnection::Close(const Status& why) {
  Finished finished;
  {
    const MutexLock lock(mutex_);
    CloseFor(why, finished);
  }
  Tell(finished);
}

void ClientConnection::AddStats(ClientStats& stats) const {
  const MutexLock lock(mutex_);
  stats.appends += counts_.appends;
  stats.reconnects += counts_.reconnects;
  stats.resent_appends += counts_.resent_appends;
  stats.bytes_in += counts_.bytes_in;
  stats.bytes_out += counts_.bytes_out;
  stats.unacknowledged_bytes += outstanding_bytes_;
}

}  // namespace forebay::buffer
