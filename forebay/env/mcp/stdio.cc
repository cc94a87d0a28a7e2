#include "forebay/env/mcp/stdio.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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
#include "forebay/env/json_work.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/subprocess/line_process.h"

namespace forebay::env::mcp {
namespace {

class Stdio final : public Transport, public std::enable_shared_from_this<Stdio> {
 public:
  Stdio(Loop& loop, const LineProcessOptions& options)
      : loop_(loop), work_(loop, options.workers), line_bytes_max_(options.line_bytes_max) {}
  ~Stdio() override {
    if (process_) process_->Abandon();
  }

  Status Start(LineProcessOptions options) {
    FB_ASSIGN_OR_RETURN(
        process_,
        LineProcess::Start(
            loop_, std::move(options),
            {.read = [weak = weak_from_this()](std::string_view line) { return Read(weak, line); },
             .on_end = [this](const Status& reason) { Fail(reason); }}));
    return OkStatus();
  }

  Task<Result<Reply>> Request(std::string method, Json params, size_t params_bytes,
                              TimePoint deadline) override {
    if (process_->ended()) co_return process_->reason();
    const std::shared_ptr<Stdio> self = shared_from_this();
    const int64_t id = ++last_id_;
    Task<Result<std::string>> writing = work_.Run(
        params_bytes, deadline, [id, method = std::move(method), params = std::move(params)] {
          return Result<std::string>(RequestText(id, method, params));
        });
    const Result<std::string> text = co_await std::move(writing);
    if (!text.ok()) co_return text.status();
    if (text->size() > line_bytes_max_) co_return TooLong(text->size());
    if (process_->ended()) co_return process_->reason();
    const Pending pending(self, id, deadline);
    process_->Send(*text);
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
      const std::weak_ptr<Stdio> weak = stdio_;
      timer_ = stdio_->loop_.RunAt(deadline, [weak, reply = reply_, seconds] {
        const auto late = weak.lock();
        const std::string did =
            fmt::format("did not answer within {:.1f} s", std::max(seconds, 0.0));
        reply.Set(DeadlineExceeded(late ? late->process_->Describe(did) : did));
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

  // On any thread: only what it returns looks at the connection.
  static std::function<Status()> Read(std::weak_ptr<Stdio> weak, std::string_view line) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return [] { return OkStatus(); };
    auto message = std::make_shared<Result<ServerMessage>>(ParseServerMessage(line));
    return [weak = std::move(weak), message = std::move(message)] {
      const auto self = weak.lock();
      return self ? self->Take(std::move(*message)) : OkStatus();
    };
  }

  Status Take(Result<ServerMessage> read) {
    FB_ASSIGN_OR_RETURN(ServerMessage message, std::move(read));
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
  const JsonWork work_;
  const size_t line_bytes_max_;
  std::shared_ptr<LineProcess> process_;
  int64_t last_id_ = 0;
  std::map<int64_t, OneShot<Result<Reply>>> open_;
};

}  // namespace

Result<std::shared_ptr<Transport>> StartStdio(Loop& loop, LineProcessOptions options) {
  auto stdio = std::make_shared<Stdio>(loop, options);
  FB_RETURN_IF_ERROR(stdio->Start(std::move(options)));
  return std::shared_ptr<Transport>(std::move(stdio));
}

}  // namespace forebay::env::mcp
