#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/service/client_connection.h"
#include "forebay/buffer/service/client_impl.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// The server's answer to a request that it waits with comes a little after its deadline.
constexpr std::chrono::milliseconds kGrace{500};

}  // namespace

TimePoint RemoteTableImpl::Deadline(TimePoint asked) const {
  return asked == TimePoint{} ? Now() + client_.options().request_deadline : asked;
}

Status RemoteTableImpl::CheckAppend(std::string_view encoded, const AppendOptions& options) const {
  if (encoded.size() > table_.record_bytes_max) {
    return InvalidArgument(fmt::format("a record of {} bytes, the table '{}' takes at most {}",
                                       encoded.size(), table_.name, table_.record_bytes_max));
  }
  if (!std::isfinite(options.priority) || options.priority < 0) {
    return InvalidArgument("a priority is a finite number, not negative");
  }
  return OkStatus();
}

void RemoteTableImpl::FillAppend(Pending& pending, std::string_view encoded,
                                 const AppendOptions& options) const {
  pending.header.type = FrameType::kAppend;
  pending.header.table = index_;
  pending.header.extra = std::bit_cast<uint32_t>(options.priority);
  pending.payload = encoded;
  pending.deadline = pending.told_deadline = Deadline(options.deadline);
}

Status RemoteTableImpl::AppendEncodedAndWait(std::string_view encoded,
                                             const AppendOptions& options) {
  FB_RETURN_IF_ERROR(CheckAppend(encoded, options));
  Pending pending;
  FillAppend(pending, encoded, options);
  return client_.AppendConnection().Call(pending);
}

void RemoteTableImpl::AppendEncoded(std::string_view encoded, const AppendOptions& options,
                                    std::function<void(Status)> done) {
  if (Status status = CheckAppend(encoded, options); !status.ok()) {
    done(std::move(status));
    return;
  }
  const auto bytes = static_cast<int64_t>(encoded.size());
  client_.ReserveAsync(bytes);
  auto pending = std::make_unique<Pending>();
  pending->owned = encoded;
  FillAppend(*pending, pending->owned, options);
  pending->done = [this, bytes, done = std::move(done)](Status status) {
    client_.ReleaseAsync(bytes);
    done(std::move(status));
  };
  client_.AppendConnection().CallAsync(std::move(pending));
}

Status RemoteTableImpl::Ask(Pending& pending, FrameType type, std::string_view payload,
                            uint32_t argument) {
  pending.header.type = type;
  pending.header.table = index_;
  pending.header.argument = argument;
  pending.payload = payload;
  if (pending.deadline == TimePoint{}) pending.deadline = Deadline({});
  FB_ASSIGN_OR_RETURN(ClientConnection * connection, client_.ReadConnection(pending.deadline));
  return connection->Call(pending);
}

Status RemoteTableImpl::AskNumber(FrameType type, int64_t number) {
  Pending pending;
  return Ask(pending, type, EncodeNumber(number));
}

Status RemoteTableImpl::AskUntil(Pending& pending, FrameType type, std::string_view payload,
                                 TimePoint deadline) {
  pending.told_deadline = Deadline(deadline);
  pending.deadline = pending.told_deadline + kGrace;
  return Ask(pending, type, payload);
}

Status RemoteTableImpl::Dispatch(const TrajectoryId& id) {
  Pending pending;
  return Ask(pending, FrameType::kDispatch, EncodeId(id));
}

Status RemoteTableImpl::Reject(const TrajectoryId& id, RejectReason reason) {
  Pending pending;
  return Ask(pending, FrameType::kReject, EncodeId(id), static_cast<uint32_t>(reason));
}

Status RemoteTableImpl::CloseGroup(int64_t group_id) {
  return AskNumber(FrameType::kCloseGroup, group_id);
}

Result<Taken> RemoteTableImpl::Take(const TakeOptions& options, TimePoint deadline) {
  const int64_t expires_ms =
      std::chrono::ceil<std::chrono::milliseconds>(options.expires_after).count();
  const std::string payload = EncodeTake({.groups = options.groups,
                                          .learner_version = options.learner_version,
                                          .selector = options.selector,
                                          .expires_ms = expires_ms});
  // Refused here: the server would hang up.
  if (!ParseTake(payload).ok()) {
    return InvalidArgument(
        "a take wants 1 to 2^20 groups, a learner_version of 0 or more and an expiry of 1 ms to "
        "one day");
  }
  Pending pending;
  FB_RETURN_IF_ERROR(AskUntil(pending, FrameType::kTake, payload, deadline));
  FB_ASSIGN_OR_RETURN(Taken taken, ParseTaken(pending.reply));
  taken.memory = std::move(pending.memory);
  return taken;
}

Status RemoteTableImpl::Acknowledge(int64_t take_id) {
  return AskNumber(FrameType::kAcknowledge, take_id);
}

Status RemoteTableImpl::GiveBack(int64_t take_id) {
  return AskNumber(FrameType::kGiveBack, take_id);
}

Result<Batch> RemoteTableImpl::Lease(int64_t groups, int64_t learner_version, TimePoint deadline) {
  const std::string payload = EncodeLease({.groups = groups, .learner_version = learner_version});
  if (!ParseLeaseRequest(payload).ok()) {
    return InvalidArgument("a lease wants 1 to 2^20 groups and a learner_version of 0 or more");
  }
  Pending pending;
  FB_RETURN_IF_ERROR(AskUntil(pending, FrameType::kLease, payload, deadline));
  return ParseBatch(pending.reply);
}

Result<Batch> RemoteTableImpl::ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) {
  const std::string payload =
      EncodeReadBatch({.sequence = batch_sequence, .shard = shard, .shards = shards});
  if (!ParseReadBatch(payload).ok()) {
    return InvalidArgument("a batch has a sequence of 1 or more, and a shard below its shards");
  }
  Pending pending;
  FB_RETURN_IF_ERROR(Ask(pending, FrameType::kReadBatch, payload));
  return ParseBatch(pending.reply);
}

Status RemoteTableImpl::MarkTrained(int64_t batch_sequence) {
  return AskNumber(FrameType::kMarkTrained, batch_sequence);
}

Status RemoteTableImpl::Commit(int64_t batch_sequence) {
  return AskNumber(FrameType::kCommit, batch_sequence);
}

Status RemoteTableImpl::Release(int64_t batch_sequence) {
  return AskNumber(FrameType::kRelease, batch_sequence);
}

Status RemoteTableImpl::Pause(bool appends, bool readers) {
  Pending pending;
  return Ask(pending, FrameType::kPause, {}, (appends ? 1U : 0U) | (readers ? 2U : 0U));
}

Status RemoteTableImpl::Unblock(const std::string& reason) {
  Pending pending;
  return Ask(pending, FrameType::kUnblock, std::string_view(reason).substr(0, 4096));
}

Result<std::vector<GroupInfo>> RemoteTableImpl::Inspect(int64_t from_group_id, int64_t limit) {
  Pending pending;
  FB_RETURN_IF_ERROR(
      Ask(pending, FrameType::kInspect,
          EncodeInspect({.from = from_group_id, .limit = std::clamp<int64_t>(limit, 0, 100'000)})));
  return ParseGroups(pending.reply);
}

Status RemoteTableImpl::AskStats(Ledger* ledger, BufferStats* stats) {
  Pending pending;
  FB_RETURN_IF_ERROR(Ask(pending, FrameType::kStats, {}));
  return ParseStats(pending.reply, ledger, stats);
}

Result<Ledger> RemoteTableImpl::ledger() {
  Ledger ledger;
  BufferStats stats;
  FB_RETURN_IF_ERROR(AskStats(&ledger, &stats));
  return ledger;
}

Result<BufferStats> RemoteTableImpl::stats() {
  Ledger ledger;
  BufferStats stats;
  FB_RETURN_IF_ERROR(AskStats(&ledger, &stats));
  return stats;
}

}  // namespace forebay::buffer
