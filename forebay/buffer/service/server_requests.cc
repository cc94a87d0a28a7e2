// What the server does with each frame.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/producers.h"
#include "forebay/buffer/service/server_impl.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<const std::string> Text(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

Status ServerImpl::OnFrame(Connection& c, const FrameHeader& header, std::string_view payload) {
  using Phase = Connection::Phase;
  if (c.phase == Phase::kEnding) return OkStatus();
  if (header.type == FrameType::kAppend && c.phase == Phase::kOpen) {
    return OnAppend(c, header, payload);
  }
  if (c.sharing != nullptr && c.phase == Phase::kOpen) {
    if (header.type == FrameType::kAppendShared) return OnAppendShared(c, header, payload);
    if (header.type == FrameType::kReplyReturned) return OnReplyReturned(c, payload);
  }
  if (header.type == FrameType::kPong && payload.empty()) return OkStatus();
  if (header.type == FrameType::kPing && payload.empty()) {
    c.out.PutFrame({.type = FrameType::kPong}, {});
    Touch(c);
    return OkStatus();
  }
  if (header.type == FrameType::kHello && c.phase == Phase::kHello) {
    return OnHello(c, header, payload);
  }
  if (c.phase != Phase::kOpen || header.type == FrameType::kHello) {
    Refuse(c, Refusal::kMessage,
           FailedPrecondition("a connection begins with one hello and waits for its welcome"));
    return OkStatus();
  }
  if (header.type == FrameType::kShare && c.version >= 2 && c.is_unix) return OnShare(c, payload);
  return OnRequest(c, header, payload);
}

Status ServerImpl::OnHello(Connection& c, const FrameHeader& /*header*/, std::string_view payload) {
  Result<Hello> hello = ParseHello(payload);
  if (!hello.ok()) {
    Refuse(c, Refusal::kMessage, hello.status());
    return OkStatus();
  }
  if (hello->version_min > kProtocolVersion || hello->version_max < kProtocolVersionMin) {
    Refuse(c, Refusal::kVersion,
           Unimplemented(fmt::format("this server speaks versions {} to {} of the buffer protocol, "
                                     "the client {} to {}",
                                     kProtocolVersionMin, kProtocolVersion, hello->version_min,
                                     hello->version_max)));
    return OkStatus();
  }
  c.version = std::min(hello->version_max, kProtocolVersion);
  // Who may open the socket's file needs no token; a wrong one is a mistake all the same.
  if (!options_.token.empty() && !(c.is_unix && hello->token.empty()) &&
      !SameSecret(hello->token, options_.token)) {
    Refuse(c, Refusal::kToken, FailedPrecondition("the token is missing or not this server's"));
    return OkStatus();
  }
  if (hello->producer.empty()) {
    SendWelcome(c, {});
    return OkStatus();
  }
  if (!ValidName(hello->producer)) {
    Refuse(c, Refusal::kMessage,
           InvalidArgument("a producer's name has 1 to 128 letters, digits, '.', '_' or '-'"));
    return OkStatus();
  }
  c.phase = Connection::Phase::kRegistering;
  ++jobs_;
  quick_->Post([this, id = c.id, name = hello->producer, secret = hello->secret] {
    const bool registered = secret == SessionSecret{};
    const Result<Producer> producer =
        registered ? producers_->Register(name) : producers_->Resume(name, secret);
    Post([this, id, name, registered, producer] { Welcomed(id, name, registered, producer); });
  });
  return OkStatus();
}

void ServerImpl::Welcomed(uint64_t connection, const std::string& name, bool registered,
                          const Result<Producer>& producer) {
  --jobs_;
  if (registered && producer.ok()) {
    for (auto& [id, other] : connections_) {
      // Not the epochs: those of a name that was forgotten begin again.
      if (other->producer == name && other->number < producer->number) other->fenced = true;
    }
  }
  Connection* c = Find(connection);
  if (c == nullptr || c->stream == nullptr || c->phase != Connection::Phase::kRegistering) return;
  if (!producer.ok()) {
    Refuse(*c,
           producer.status().code() == StatusCode::kFailedPrecondition ? Refusal::kFenced
                                                                       : Refusal::kMessage,
           producer.status());
    return;
  }
  c->producer = name;
  c->number = producer->number;
  c->epoch = producer->epoch;
  SendWelcome(*c, producer->secret);
}

void ServerImpl::SendWelcome(Connection& c, const SessionSecret& secret) {
  const auto ms = [](Duration d) {
    return static_cast<uint32_t>(std::chrono::duration_cast<milliseconds>(d).count());
  };
  Welcome welcome{.version = c.version,
                  .credit_bytes = static_cast<uint64_t>(options_.credit_bytes),
                  .ping_ms = ms(options_.ping_after),
                  .idle_ms = ms(options_.idle_deadline),
                  .producer_number = c.number,
                  .epoch = c.epoch,
                  .secret = secret};
  for (const Table& table : tables_) {
    welcome.tables.push_back(
        {.name = table.name,
         .implied_dispatch = table.served.implied_dispatch,
         .group_size = table.served.group_size,
         .record_bytes_max = static_cast<uint32_t>(table.served.record_bytes_max)});
  }
  c.phase = Connection::Phase::kOpen;
  c.last_in = now_;
  c.in.set_length_max(frame_bytes_max_);
  c.out.PutFrame({.type = FrameType::kWelcome}, EncodeWelcome(welcome));
  Touch(c);
}

void ServerImpl::Fail(Connection& c, uint64_t request, const Status& why) {
  c.out.PutFrame({.type = FrameType::kFailed,
                  .request = request,
                  .argument = static_cast<uint32_t>(why.code())},
                 why.message());
  Touch(c);
}

Status ServerImpl::OnAppend(Connection& c, const FrameHeader& header, std::string_view payload) {
  const auto bytes = static_cast<int64_t>(payload.size());
  const auto fail = [&](const Status& why) {
    ++counts_.append_errors;
    Fail(c, header.request, why);
    return OkStatus();
  };
  if (header.table >= tables_.size()) {
    return fail(NotFound(fmt::format("the server has no table {}", header.table)));
  }
  const ServedTable& table = tables_[header.table].served;
  if (c.fenced) {
    ++counts_.refused[static_cast<size_t>(Refusal::kFenced)];
    return fail(FailedPrecondition(
        fmt::format("producer '{}' was registered again by somebody else: this holder (epoch {}) "
                    "is fenced and may not append any more",
                    c.producer, c.epoch)));
  }
  // No answer: the client sends it again to the server that comes next, as when the connection
  // breaks.
  if (stopping_) return OkStatus();
  if (bytes > table.record_bytes_max) {
    return fail(InvalidArgument(fmt::format("a record of {} bytes, this table takes at most {}",
                                            bytes, table.record_bytes_max)));
  }
  // What lies in shared memory may change: what is checked here is what the buffer has to find.
  std::optional<int64_t> checked_id;
  if (table.implied_dispatch) {
    const std::optional<TrajectoryId> id = PeekId(payload);
    if (!id.has_value()) return fail(DataLoss("these bytes are no encoded trajectory"));
    if (c.number == 0 || (id->trajectory_id >> kProducerShift) != c.number) {
      return fail(c.number == 0
                      ? FailedPrecondition("appends to this table need a registered producer")
                      : InvalidArgument(fmt::format(
                            "trajectory_id {} is not of producer {}: its ids begin at {} * 2^40",
                            id->trajectory_id, c.number, c.number)));
    }
    checked_id = id->trajectory_id;
  }
  const auto priority = std::bit_cast<float>(header.extra);
  if (!std::isfinite(priority) || priority < 0) {
    return fail(InvalidArgument("a priority is a finite number, not negative"));
  }
  if (c.append_bytes > 0 && c.append_bytes + bytes > options_.credit_bytes) {
    Refuse(c, Refusal::kCredit,
           ResourceExhausted(
               fmt::format("more than {} bytes of unacknowledged appends", options_.credit_bytes)));
    return OkStatus();
  }
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.connection = c.id;
  slot.request = header.request;
  slot.bytes = bytes;
  slot.table = header.table;
  if (tables_[header.table].tails > 0) slot.copy = Text(std::string(payload));
  c.appends = true;
  c.append_bytes += bytes;
  counts_.append_bytes += bytes;
  CheckPause();
  const Duration limit = milliseconds(header.argument);
  completions_->Expect();
  table.buffer->AppendEncoded(payload,
                              {.deadline = now_ + std::min(limit, options_.append_deadline_max),
                               .priority = priority,
                               .trajectory_id = checked_id},
                              [completions = completions_.get(), index](Status status) {
                                completions->Push(index, std::move(status));
                              });
  return OkStatus();
}

void ServerImpl::FinishAppends() {
  completions_->Drain(done_);
  if (done_.empty()) return;
  for (const Completions::Done& done : done_) {
    Slot& slot = slots_[done.slot];
    counts_.append_bytes -= slot.bytes;
    Connection* c = Find(slot.connection);
    if (c != nullptr && c->stream != nullptr) {
      c->append_bytes -= slot.bytes;
      if (done.status.ok()) {
        c->acks.push_back(slot.request);
        Touch(*c);
      } else {
        Fail(*c, slot.request, done.status);
      }
    }
    if (done.status.ok()) {
      ++counts_.appends;
      tables_[slot.table].fresh = true;
      if (slot.copy != nullptr) SendTail(slot);
    } else {
      ++counts_.append_errors;
    }
    slot.copy.reset();
    free_slots_.push_back(done.slot);
  }
  done_.clear();
  CheckPause();
}

}  // namespace forebay::buffer
