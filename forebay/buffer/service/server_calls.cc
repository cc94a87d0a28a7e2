// The server's calls: requests that one method of Buffer answers, on a worker.
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
#include "forebay/buffer/service/server_impl.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

std::shared_ptr<const std::string> Text(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

void ServerImpl::RunOn(WorkerPool& worker, Connection& c, const FrameHeader& header,
                       std::function<Answer()> fn) {
  ++c.requests;
  ++jobs_;
  worker.Post([this, id = c.id, request = header.request, fn = std::move(fn)] {
    Post([this, id, request, answer = fn()] { Finish(id, request, answer); });
  });
}

void ServerImpl::Finish(uint64_t connection, uint64_t request, const Answer& answer) {
  --jobs_;
  Connection* c = Find(connection);
  if (c == nullptr || c->stream == nullptr || c->phase == Connection::Phase::kEnding) return;
  --c->requests;
  if (c->out.bytes() > kReplyBytesMax) {
    Refuse(*c, Refusal::kSlowReader,
           ResourceExhausted("more than 1 GiB of answers wait for being read"));
    return;
  }
  if (!answer.ok()) {
    Fail(*c, request, answer.status());
    return;
  }
  if (*answer == nullptr) {
    c->out.PutFrame({.type = FrameType::kDone, .request = request}, {});
  } else if ((*answer)->size() > kReplyBytesMax) {
    Fail(*c, request, ResourceExhausted("the answer has more than 1 GiB: ask for less"));
    return;
  } else {
    const FrameHeaderBytes header =
        EncodeFrameHeader({.length = static_cast<uint32_t>((*answer)->size()),
                           .type = FrameType::kReply,
                           .request = request});
    c->out.Put({header.data(), header.size()});
    c->out.PutView(**answer, *answer);
  }
  Touch(*c);
}

Status ServerImpl::OnRequest(Connection& c, const FrameHeader& header, std::string_view payload) {
  ++counts_.requests;
  if (header.table >= tables_.size()) {
    Fail(c, header.request, NotFound(fmt::format("the server has no table {}", header.table)));
    return OkStatus();
  }
  if (stopping_) {
    Fail(c, header.request, Unavailable("the server is stopping"));
    return OkStatus();
  }
  if (payload.size() > kRequestBytesMax) return ResourceExhausted("a request that is too long");
  if (c.requests >= options_.requests_max) {
    Fail(c, header.request,
         ResourceExhausted(
             fmt::format("this connection has {} requests open (requests_max)", c.requests)));
    ++counts_.refused[static_cast<size_t>(Refusal::kCredit)];
    return OkStatus();
  }
  Buffer* buffer = tables_[header.table].served.buffer;
  const TimePoint deadline = now_ + std::chrono::milliseconds(header.argument);
  // As below, for what never waits: answered at once, without the way to a worker and back.
  const auto quick_call = [&](Status (Buffer::*method)(int64_t)) -> Status {
    FB_ASSIGN_OR_RETURN(const int64_t number, ParseNumber(payload));
    if (const Status status = (buffer->*method)(number); !status.ok()) {
      Fail(c, header.request, status);
    } else {
      c.out.PutFrame({.type = FrameType::kDone, .request = header.request}, {});
      Touch(c);
    }
    return OkStatus();
  };
  // A call without an answer but its status, with one number.
  const auto number_call = [&](Status (Buffer::*method)(int64_t)) -> Status {
    FB_ASSIGN_OR_RETURN(const int64_t number, ParseNumber(payload));
    RunOn(*quick_, c, header, [=]() -> Answer {
      FB_RETURN_IF_ERROR((buffer->*method)(number));
      return std::shared_ptr<const std::string>();
    });
    return OkStatus();
  };
  const auto run = [&]() -> Status {
    switch (header.type) {
      case FrameType::kTake:
        return OnTake(c, header, payload);
      case FrameType::kTail:
        return OnTail(c, header);
      case FrameType::kAcknowledge:
        return quick_call(&Buffer::Acknowledge);
      case FrameType::kGiveBack:
        return quick_call(&Buffer::GiveBack);
      case FrameType::kMarkTrained:
        return number_call(&Buffer::MarkTrained);
      case FrameType::kCommit:
        return number_call(&Buffer::Commit);
      case FrameType::kRelease:
        return number_call(&Buffer::Release);
      case FrameType::kCloseGroup:
        return number_call(&Buffer::CloseGroup);
      case FrameType::kDispatch: {
        FB_ASSIGN_OR_RETURN(const TrajectoryId id, ParseId(payload));
        RunOn(*quick_, c, header, [=]() -> Answer {
          FB_RETURN_IF_ERROR(buffer->Dispatch(id));
          return std::shared_ptr<const std::string>();
        });
        return OkStatus();
      }
      case FrameType::kReject: {
        FB_ASSIGN_OR_RETURN(const TrajectoryId id, ParseId(payload));
        if (header.argument >= kRejectReasons) return DataLoss("an unknown reason to reject");
        RunOn(*quick_, c, header,
              [=, reason = static_cast<RejectReason>(header.argument)]() -> Answer {
                FB_RETURN_IF_ERROR(buffer->Reject(id, reason));
                return std::shared_ptr<const std::string>();
              });
        return OkStatus();
      }
      case FrameType::kLease: {
        FB_ASSIGN_OR_RETURN(const LeaseRequest lease, ParseLeaseRequest(payload));
        ++c.requests;
        ++jobs_;
        LeaseSlice(c.id, header.request, buffer, lease, deadline);
        return OkStatus();
      }
      case FrameType::kReadBatch: {
        FB_ASSIGN_OR_RETURN(const ReadBatchRequest read, ParseReadBatch(payload));
        RunOn(*slow_, c, header, [=]() -> Answer {
          FB_ASSIGN_OR_RETURN(const Batch batch,
                              buffer->ReadBatch(read.sequence, read.shard, read.shards));
          return Text(EncodeBatch(batch));
        });
        return OkStatus();
      }
      case FrameType::kPause:
        RunOn(*quick_, c, header, [=, bits = header.argument]() -> Answer {
          buffer->Pause((bits & 1) != 0, (bits & 2) != 0);
          return std::shared_ptr<const std::string>();
        });
        return OkStatus();
      case FrameType::kUnblock: {
        const std::string reason(payload);
        FailTakes(header.table, Unavailable(reason));
        RunOn(*quick_, c, header, [=]() -> Answer {
          buffer->Unblock(reason);
          return std::shared_ptr<const std::string>();
        });
        return OkStatus();
      }
      case FrameType::kInspect: {
        FB_ASSIGN_OR_RETURN(const InspectRequest inspect, ParseInspect(payload));
        RunOn(*quick_, c, header, [=]() -> Answer {
          return Text(EncodeGroups(buffer->Inspect(inspect.from, inspect.limit)));
        });
        return OkStatus();
      }
      case FrameType::kStats:
        RunOn(*quick_, c, header,
              [=]() -> Answer { return Text(EncodeStats(buffer->ledger(), buffer->stats())); });
        return OkStatus();
      default:
        return DataLoss(
            fmt::format("an unknown kind of frame ({})", int{static_cast<uint8_t>(header.type)}));
    }
  };
  if (const Status status = run(); !status.ok()) Refuse(c, Refusal::kMessage, status);
  return OkStatus();
}

}  // namespace forebay::buffer
