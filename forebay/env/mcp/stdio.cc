#include "forebay/env/mcp/stdio.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/subprocess/line_process.h"

namespace forebay::env::mcp {
namespace {

class Stdio final : public Transport, public std::enable_shared_from_this<Stdio> {
 public:
  Stdio(Loop& loop, size_t line_bytes_max) : loop_(loop), line_bytes_max_(line_bytes_max) {}
  ~Stdio() override {
    if (process_) process_->Abandon();
  }

  Status Start(LineProcessOptions options) {
    FB_ASSIGN_OR_RETURN(
        process_,
        LineProcess::Start(loop_, std::move(options),
                           {.on_line = [this](std::string_view line) { return Take(line); },
                            .on_end = [this](const Status& reason) { Fail(reason); }}));
    return OkStatus();
  }

  Task<Result<Reply>> Request(std::string method, Json params, TimePoint deadline) override {
    if (process_->ended()) co_return process_->reason();
    const std::shared_ptr<Stdio> self = shared_from_this();
    const int64_t id = ++last_id_;
    const std::string text = RequestText(id, method, params);
    if (text.size() > line_bytes_max_) co_return TooLong(text.size());
    const Pending pending(self, id, deadline);
    process_->Send(text);
    Result<Reply> reply = co_await pending.reply().Wait();
    co_return reply;
  }

  Task<Status> Notify(std::string method, Json params, TimePoint) override {
    process_->Send(NotificationText(method, params));
    co_return process_->reason();
  }

  void UseVersion(const std::string&) override {}
  bool broken() const override { return process_->ended(); }
  void Kill() override {
    process_->Abandon();
    Fail(process_->reason());
  }

  Task<void> End(TimePoint deadline) override {
    const std::shared_ptr<LineProcess> process = process_;
    Task<void> ending = LineProcess::End(process, deadline);
    co_await std::move(ending);
  }

 private:
  // A request that is open, in the frame of its coroutine. When it goes without a reply, the server
  // is told that nobody wants it any more.
  class Pending {
   public:
    Pending(std::shared_ptr<Stdio> stdio, int64_t id, TimePoint deadline)
        : stdio_(std::move(stdio)), id_(id), reply_(stdio_->loop_) {
      stdio_->open_.emplace(id_, reply_);
      const double seconds = Seconds(deadline - stdio_->loop_.Now());
      timer_ = stdio_->loop_.RunAt(deadline, [reply = reply_, seconds] {
        reply.Set(DeadlineExceeded(
            fmt::format("the MCP server did not answer within {:.1f} s", std::max(seconds, 0.0))));
      });
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    ~Pending() {
      stdio_->loop_.Cancel(timer_);
      if (stdio_->open_.erase(id_) == 0) return;
      stdio_->process_->Send(NotificationText("notifications/cancelled", {{"requestId", id_}}));
    }
    const OneShot<Result<Reply>>& reply() const { return reply_; }

   private:
    std::shared_ptr<Stdio> stdio_;
    int64_t id_;
    OneShot<Result<Reply>> reply_;
    uint64_t timer_ = 0;
  };

  Status TooLong(size_t bytes) const {
    return InvalidArgument(fmt::format(
        "a request of {} bytes is longer than {} (message_bytes_max)", bytes, line_bytes_max_));
  }

  Status Take(std::string_view line) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return OkStatus();
    FB_ASSIGN_OR_RETURN(ServerMessage message, ParseServerMessage(line));
    if (auto* reply = std::get_if<ReplyMessage>(&message)) {
      const auto it = open_.find(reply->id);
      if (it == open_.end()) return OkStatus();  // late
      const OneShot<Result<Reply>> waiting = it->second;
      open_.erase(it);
      waiting.Set(std::move(reply->reply));
    } else if (const auto* request = std::get_if<RequestMessage>(&message)) {
      process_->Send(AnswerText(*request));
    }
    return OkStatus();
  }

  void Fail(const Status& reason) {
    for (const auto& [id, reply] : std::exchange(open_, {})) reply.Set(reason);
  }

  Loop& loop_;
  const size_t line_bytes_max_;
  std::shared_ptr<LineProcess> process_;
  int64_t last_id_ = 0;
  std::map<int64_t, OneShot<Result<Reply>>> open_;
};

}  // namespace

Result<std::shared_ptr<Transport>> StartStdio(Loop& loop, LineProcessOptions options) {
  auto stdio = std::make_shared<Stdio>(loop, options.line_bytes_max);
  FB_RETURN_IF_ERROR(stdio->Start(std::move(options)));
  return std::shared_ptr<Transport>(std::move(stdio));
}

}  // namespace forebay::env::mcp
