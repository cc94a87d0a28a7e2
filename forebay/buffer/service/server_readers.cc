// The server's readers: takes (tried on the I/O thread, which never waits for groups), leases (on a
// worker, in turns) and tails.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/server_impl.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;

// A lease waits in turns, so that one that waits long does not hold the others' thread.
constexpr milliseconds kLeaseTurn{20};
// Records smaller than this are copied into the output: a piece of its own costs more.
constexpr size_t kCopiedBytes = 2048;
// A tail that is behind by more skips records.
constexpr size_t kTailBytesMax = size_t{8} << 20;

}  // namespace

Status ServerImpl::OnTake(Connection& c, const FrameHeader& header, std::string_view payload) {
  FB_ASSIGN_OR_RETURN(const TakeRequest request, ParseTake(payload));
  WaitingTake take{.connection = c.id,
                   .request = header.request,
                   .table = header.table,
                   .options = {.groups = request.groups,
                               .learner_version = request.learner_version,
                               .selector = request.selector,
                               .expires_after = milliseconds(request.expires_ms)},
                   .deadline = now_ + milliseconds(header.argument)};
  ++c.requests;
  // Those that wait for as much were first.
  const bool waits = std::ranges::any_of(takes_, [&](const WaitingTake& other) {
    return other.table == take.table && other.options.groups <= take.options.groups;
  });
  if (waits || !TryTake(take)) takes_.push_back(take);
  return OkStatus();
}

bool ServerImpl::TryTake(WaitingTake& take) {
  Connection* c = Find(take.connection);
  if (c == nullptr || c->stream == nullptr || c->phase != Connection::Phase::kOpen) return true;
  Status why = DeadlineExceeded("not that many groups were ready in time");
  if (c->out.bytes() <= static_cast<size_t>(options_.output_bytes_max)) {
    Result<Taken> taken = tables_[take.table].served.buffer->Take(take.options, Now());
    if (taken.ok()) {
      SendTaken(*c, take, *taken);
      return true;
    }
    if (taken.status().code() != StatusCode::kDeadlineExceeded) {
      why = taken.status();
      take.deadline = now_;
    }
  }
  if (now_ < take.deadline) return false;
  --c->requests;
  Fail(*c, take.request, why);
  return true;
}

void ServerImpl::SendTaken(Connection& c, const WaitingTake& take, const Taken& taken) {
  Buffer* buffer = tables_[take.table].served.buffer;
  --c.requests;
  size_t length = kTakenHeadBytes + taken.trajectories.size() * kTakenEntryBytes;
  for (const TrajectoryView& view : taken.trajectories) length += view.encoded.size();
  if (length > kReplyBytesMax) {
    const Status given = buffer->GiveBack(taken.take_id);
    (void)given;  // expired: the same
    Fail(c, take.request, ResourceExhausted("these groups have more than 1 GiB: take fewer"));
    return;
  }
  ++counts_.takes;
  FrameHeader header{.length = static_cast<uint32_t>(length),
                     .type = FrameType::kReply,
                     .table = take.table,
                     .request = take.request};
  SharedPiece piece;
  if (char* at = LendReply(c, length, &piece)) {
    const auto put = [&at](std::string_view bytes) { at = std::ranges::copy(bytes, at).out; };
    put(EncodeTakenIndex(taken));
    for (const TrajectoryView& view : taken.trajectories) put(view.encoded);
    const auto where = EncodeSharedPiece(piece);
    header.type = FrameType::kReplyShared;
    c.out.PutFrame(header, {where.data(), where.size()});
  } else {
    const FrameHeaderBytes head = EncodeFrameHeader(header);
    c.out.Put({head.data(), head.size()});
    c.out.Put(EncodeTakenIndex(taken));
    for (const TrajectoryView& view : taken.trajectories) {
      if (view.encoded.size() < kCopiedBytes || taken.memory == nullptr) {
        c.out.Put(view.encoded);
      } else {
        c.out.PutView(view.encoded, taken.memory);
      }
    }
  }
  c.unsent.push_back({.sent_at = c.out.put_total(), .buffer = buffer, .take_id = taken.take_id});
  Touch(c);
}

void ServerImpl::TryTakes(bool all) {
  // Where one got nothing, those that want as much or more get nothing either.
  struct Failed {
    int64_t groups, learner_version;
  };
  std::vector<std::optional<Failed>> failed(tables_.size());
  std::erase_if(takes_, [&](WaitingTake& take) {
    std::optional<Failed>& before = failed[take.table];
    const bool hopeless = before.has_value() && take.options.groups >= before->groups &&
                          take.options.learner_version >= before->learner_version;
    if ((hopeless || (!all && !tables_[take.table].fresh)) && now_ < take.deadline) return false;
    if (TryTake(take)) return true;
    before = {.groups = take.options.groups, .learner_version = take.options.learner_version};
    return false;
  });
  for (Table& table : tables_) table.fresh = false;
}

void ServerImpl::FailTakes(int32_t table, const Status& why) {
  std::erase_if(takes_, [&](const WaitingTake& take) {
    if (table >= 0 && take.table != table) return false;
    if (Connection* c = Find(take.connection); c != nullptr && c->stream != nullptr) {
      --c->requests;
      Fail(*c, take.request, why);
    }
    return true;
  });
}

void ServerImpl::LeaseSlice(uint64_t connection, uint64_t request, Buffer* buffer,
                            LeaseRequest lease, TimePoint deadline) {
  slow_->Post([=, this] {
    Result<Batch> batch =
        buffer->Lease(lease.groups, lease.learner_version, std::min(deadline, Now() + kLeaseTurn));
    const bool again =
        batch.status().code() == StatusCode::kDeadlineExceeded && Now() < deadline && !stop_asked_;
    if (again) {
      Post([=, this] {
        Connection* c = Find(connection);
        if (c != nullptr && c->stream != nullptr && !stopping_) {
          LeaseSlice(connection, request, buffer, lease, deadline);
        } else {
          Finish(connection, request, Unavailable("the server is stopping"));
        }
      });
      return;
    }
    Answer answer = batch.ok() ? Answer(std::make_shared<const std::string>(EncodeBatch(*batch)))
                               : Answer(batch.status());
    Post([=, this] { Finish(connection, request, answer); });
  });
}

void ServerImpl::SendTail(const Slot& slot) {
  for (auto& [id, c] : connections_) {
    if (c->stream == nullptr || c->tail_table != slot.table) continue;
    if (c->out.bytes() > kTailBytesMax) {
      ++c->tail_skipped;
      ++counts_.tail_skipped;
      continue;
    }
    const FrameHeaderBytes header =
        EncodeFrameHeader({.length = static_cast<uint32_t>(sizeof(uint64_t) + slot.copy->size()),
                           .type = FrameType::kTailRecords,
                           .table = slot.table,
                           .request = c->tail_request});
    c->out.Put({header.data(), header.size()});
    c->out.Put({reinterpret_cast<const char*>(&c->tail_skipped), sizeof(uint64_t)});
    c->out.PutView(*slot.copy, slot.copy);
    Touch(*c);
  }
}

Status ServerImpl::OnTail(Connection& c, const FrameHeader& header) {
  if (c.tail_table >= 0) {
    Fail(c, header.request, FailedPrecondition("this connection has a tail"));
    return OkStatus();
  }
  c.tail_table = header.table;
  c.tail_request = header.request;
  ++tables_[header.table].tails;
  c.out.PutFrame({.type = FrameType::kDone, .request = header.request}, {});
  Touch(c);
  return OkStatus();
}

}  // namespace forebay::buffer
