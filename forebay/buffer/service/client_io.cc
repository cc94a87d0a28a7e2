// Sending and reading for all threads of a client's connection.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/client_area.h"
#include "forebay/buffer/service/client_connection.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/frame_reader.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/signal.h"
#include "forebay/buffer/service/socket.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;

constexpr size_t kPiecesAtOnce = 64;
constexpr size_t kBytesAtOnce = size_t{256} << 10;
// Payloads up to this are copied and sent together.
constexpr size_t kSmallBytes = 256;
constexpr uint64_t kSlotMask = (uint64_t{1} << 20) - 1;
// A sender that is held up looks that often for callers that want to leave.
constexpr milliseconds kSendTurn{20};

uint32_t MillisecondsLeft(TimePoint deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Now()).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 0, int64_t{0xffffffff}));
}

bool IsReply(FrameType type) {
  return type == FrameType::kReply || type == FrameType::kReplyShared;
}

// An owner of the payload that is being read: the reader's block, or a copy, and then `payload` is
// that.
std::shared_ptr<const void> OwnerOf(FrameReader& reader, std::string_view& payload) {
  if (std::shared_ptr<char[]> block = reader.TakeBlock()) return block;
  auto copy = std::make_shared_for_overwrite<char[]>(payload.size());
  std::memcpy(copy.get(), payload.data(), payload.size());
  payload = {copy.get(), payload.size()};
  return copy;
}

}  // namespace

void ClientConnection::AddSmall(std::string_view bytes) {
  char* const at = sent_small_.data() + sent_small_.size();
  sent_small_.insert(sent_small_.end(), bytes.begin(), bytes.end());
  if (!areas_.empty() && static_cast<char*>(areas_.back().iov_base) + areas_.back().iov_len == at) {
    areas_.back().iov_len += bytes.size();
  } else {
    areas_.push_back({at, bytes.size()});
  }
}

bool ClientConnection::Gather() {
  if (area_ != nullptr) {
    const std::vector<uint64_t> returned = area_->TakeReturned();
    if (!returned.empty()) {
      const auto bytes = static_cast<uint32_t>(returned.size() * sizeof(uint64_t));
      const FrameHeaderBytes head =
          EncodeFrameHeader({.length = bytes, .type = FrameType::kReplyReturned});
      control_.append(head.data(), head.size());
      control_.append(reinterpret_cast<const char*>(returned.data()), bytes);
    }
  }
  sent_small_.clear();
  sent_small_.reserve(control_.size() + kPiecesAtOnce * (kFrameHeaderBytes + kSmallBytes));
  sent_pieces_.clear();
  areas_.clear();
  rescued_.clear();
  if (!control_.empty()) AddSmall(std::exchange(control_, std::string()));
  const auto credit = static_cast<int64_t>(credit_bytes_);
  size_t bytes = 0;
  while (!queue_.empty() && sent_pieces_.size() < kPiecesAtOnce && bytes < kBytesAtOnce) {
    const uint32_t index = queue_.front();
    Slot& slot = slots_[index];
    if (slot.type == FrameType::kAppend) {
      if (outstanding_bytes_ > 0 && outstanding_bytes_ + slot.bytes > credit) break;
      slot.credit = true;
      outstanding_bytes_ += slot.bytes;
    }
    queue_.pop_front();
    slot.state = SlotState::kSending;
    const Pending& pending = *slot.pending;
    FrameHeader header = pending.header;
    if (pending.told_deadline != TimePoint{}) {
      header.argument = MillisecondsLeft(pending.told_deadline);
    }
    std::string_view payload = pending.payload;
    std::array<char, kSharedPieceBytes> piece;
    if (slot.shared.has_value()) {
      piece = EncodeSharedPiece({.offset = *slot.shared, .bytes = slot.bytes});
      payload = {piece.data(), piece.size()};
      header.type = FrameType::kAppendShared;
      header.length = kSharedPieceBytes;
    }
    const FrameHeaderBytes head = EncodeFrameHeader(header);
    AddSmall({head.data(), head.size()});
    size_t area = 0;
    if (payload.size() <= kSmallBytes) {
      AddSmall(payload);
    } else {
      area = areas_.size();
      areas_.push_back({const_cast<char*>(payload.data()), payload.size()});
    }
    sent_pieces_.push_back({.slot = index, .request = slot.request, .area = area});
    bytes += kFrameHeaderBytes + payload.size();
  }
  return !areas_.empty();
}

void ClientConnection::Send(Pending* caller) {
  if (sending_ || state_ != State::kOpen) return;
  sending_ = true;
  sender_ = caller;
  Finished finished;
  while (state_ == State::kOpen && Gather()) {
    WriteAll();
    for (const Piece& piece : sent_pieces_) {
      Slot& slot = slots_[piece.slot];
      if (slot.request != piece.request || slot.state != SlotState::kSending) continue;
      slot.state = SlotState::kSent;
      if (slot.answered) {
        Complete(slot, std::move(slot.pending->status), finished);
      } else if (state_ == State::kClosed ||
                 (state_ == State::kBroken && slot.type != FrameType::kAppend)) {
        // What the loss of the connection could not end while it was being sent.
        Complete(slot, last_error_, finished);
      }
    }
  }
  sending_ = false;
  sender_ = nullptr;
  if (state_ != State::kOpen) keeper_wake_.NotifyAll();
  if (!finished.empty()) {
    mutex_.Unlock();
    Tell(finished);
    mutex_.Lock();
  }
}

void ClientConnection::Rescue(size_t next_area, Finished& finished) {
  for (const Piece& piece : sent_pieces_) {
    Slot& slot = slots_[piece.slot];
    if (slot.request != piece.request || !slot.leaving || slot.state != SlotState::kSending) {
      continue;
    }
    if (piece.area > 0 && piece.area >= next_area) {
      iovec& payload = areas_[piece.area];
      auto copy = std::make_unique_for_overwrite<char[]>(payload.iov_len);
      std::memcpy(copy.get(), payload.iov_base, payload.iov_len);
      payload.iov_base = copy.get();
      rescued_.push_back(std::move(copy));
    }
    slot.state = SlotState::kSent;
    if (slot.answered) {
      Complete(slot, std::move(slot.pending->status), finished);
    } else {
      slot.pending->signal.Look();
      finished.wake.Add(slot.pending->slot);
    }
  }
}

void ClientConnection::WriteAll() {
  size_t next = 0;
  size_t total = 0;
  mutex_.Unlock();
  while (next < areas_.size()) {
    const Io io = stream_->Write(std::span(areas_).subspan(next));
    if (io.state == Io::State::kOk) {
      total += io.bytes;
      size_t left = io.bytes;
      while (next < areas_.size() && left >= areas_[next].iov_len) left -= areas_[next++].iov_len;
      if (left > 0) {
        areas_[next].iov_base = static_cast<char*>(areas_[next].iov_base) + left;
        areas_[next].iov_len -= left;
      }
      continue;
    }
    bool held_up = io.state == Io::State::kWantRead || io.state == Io::State::kWantWrite;
    if (held_up) WaitWritable(stream_->fd(), Now() + kSendTurn);
    Finished finished;
    mutex_.Lock();
    if (held_up) {
      Rescue(next, finished);
    } else {
      Break(Unavailable("the connection to the buffer's server broke while sending"), finished);
    }
    held_up = state_ == State::kOpen;
    mutex_.Unlock();
    Tell(finished);
    if (!held_up) break;
  }
  mutex_.Lock();
  counts_.bytes_out += static_cast<int64_t>(total);
}

bool ClientConnection::Lead(Pending* pending, TimePoint deadline) {
  reading_ = true;
  leader_ = pending;
  Finished finished;
  bool answered = false;
  // What TLS holds does not show on the socket: it is read first.
  bool wait = !stream_->tls();
  while (true) {
    mutex_.Unlock();
    Tell(finished);
    const bool readable = !wait || WaitReadable(stream_->fd(), deadline);
    std::array<iovec, 2> areas;
    Io io{.state = Io::State::kWantRead};
    if (readable) {
      const int n = reader_.Prepare(scratch_, areas.data());
      io = stream_->Read({areas.data(), static_cast<size_t>(n)});
    }
    mutex_.Lock();
    if (io.state == Io::State::kOk) {
      last_in_ = Now();
      counts_.bytes_in += static_cast<int64_t>(io.bytes);
      const Status status =
          reader_.Commit(scratch_, io.bytes,
                         [&](const FrameHeader& header, std::string_view payload)
                             FB_REQUIRES(mutex_) { return OnFrame(header, payload, finished); });
      if (!status.ok()) Break(status, finished);
      if (!queue_.empty() || !control_.empty()) Send();
    } else if (io.state == Io::State::kClosed || io.state == Io::State::kError) {
      Break(Unavailable("the buffer's server closed the connection"), finished);
    }
    wait = !stream_->tls() || io.state != Io::State::kOk;
    if (pending != nullptr) {
      const Slot& own = slots_[pending->slot];
      answered = own.pending != pending || own.answered;
    }
    if (state_ != State::kOpen || answered || (pending == nullptr && open_async_ == 0) ||
        Now() >= deadline) {
      break;
    }
  }
  reading_ = false;
  leader_ = nullptr;
  HandOn(finished);
  if (!finished.empty()) {
    mutex_.Unlock();
    Tell(finished);
    mutex_.Lock();
  }
  return answered;
}

void ClientConnection::HandOn(Finished& finished) {
  if (state_ == State::kOpen && newest_ != nullptr) {
    // The newest's answer comes last: it can lead for longest. Not who is busy sending, or
    // answered.
    Pending* next = newest_;
    while (next != nullptr && (next == sender_ || slots_[next->slot].answered)) next = next->older;
    if (next != nullptr) {
      next->signal.Look();
      finished.wake.Add(next->slot);
      return;
    }  // the sender looks for itself
  }
  if (state_ != State::kOpen || open_async_ > 0) keeper_wake_.NotifyAll();
}

Status ClientConnection::OnFrame(const FrameHeader& header, std::string_view payload,
                                 Finished& finished) {
  switch (header.type) {
    case FrameType::kAppended:
      for (; payload.size() >= sizeof(uint64_t); payload.remove_prefix(sizeof(uint64_t))) {
        uint64_t request = 0;
        std::memcpy(&request, payload.data(), sizeof(request));
        const uint64_t index = request & kSlotMask;
        if (index < slots_.size() && slots_[index].request == request) {
          Complete(slots_[index], OkStatus(), finished);
        }
      }
      return payload.empty() ? OkStatus() : DataLoss("a list of acknowledgements that is cut");
    case FrameType::kDone:
    case FrameType::kFailed:
    case FrameType::kReply:
    case FrameType::kReplyShared:
      return OnAnswer(header, payload, finished);
    case FrameType::kPing: {
      const FrameHeaderBytes pong = EncodeFrameHeader({.type = FrameType::kPong});
      control_.append(pong.data(), pong.size());
      return OkStatus();
    }
    case FrameType::kPong:
      return OkStatus();
    case FrameType::kGoodbye: {
      const auto code = static_cast<StatusCode>(header.argument);
      const Status why(code, std::string(payload));
      if (code == StatusCode::kFailedPrecondition || code == StatusCode::kUnimplemented) {
        CloseFor(why, finished);
        return OkStatus();
      }
      Break(Unavailable("the buffer's server said goodbye: " + why.message()), finished);
      return OkStatus();
    }
    default:
      return DataLoss("the buffer's server sent a frame that this client does not know");
  }
}

Status ClientConnection::OnAnswer(const FrameHeader& header, std::string_view payload,
                                  Finished& finished) {
  std::shared_ptr<const void> memory;
  if (header.type == FrameType::kReplyShared) {
    const Result<SharedPiece> piece = ParseSharedPiece(payload);
    std::shared_ptr<const char> lent =
        piece.ok() && area_ != nullptr ? area_->Reply(*piece) : nullptr;
    if (lent == nullptr) return DataLoss("a reply outside of the shared memory");
    payload = {lent.get(), piece->bytes};
    memory = std::move(lent);
  }
  const uint64_t index = header.request & kSlotMask;
  if (header.request == 0 || index >= slots_.size() || slots_[index].request != header.request) {
    return OkStatus();
  }
  Slot& slot = slots_[index];
  if (slot.pending == nullptr) {
    // Groups for a caller that has gone: others may have them.
    if (slot.type == FrameType::kTake && IsReply(header.type) &&
        payload.size() >= sizeof(int64_t)) {
      const FrameHeaderBytes give_back = EncodeFrameHeader(
          {.length = sizeof(int64_t), .type = FrameType::kGiveBack, .table = slot.table});
      control_.append(give_back.data(), give_back.size());
      control_.append(payload.substr(0, sizeof(int64_t)));
    }
    FreeSlot(slot);
    return OkStatus();
  }
  Pending& pending = *slot.pending;
  pending.answer = header.type;
  Status status;
  if (header.type == FrameType::kFailed) {
    const bool known =
        header.argument > 0 && header.argument <= static_cast<uint32_t>(StatusCode::kInternal);
    status = Status(known ? static_cast<StatusCode>(header.argument) : StatusCode::kInternal,
                    std::string(payload));
  } else if (IsReply(header.type)) {
    if (memory == nullptr) memory = OwnerOf(reader_, payload);
    pending.memory = std::move(memory);
    pending.reply = payload;
  }
  Complete(slot, std::move(status), finished);
  return OkStatus();
}

}  // namespace forebay::buffer
