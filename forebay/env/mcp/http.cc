#include "forebay/env/mcp/http.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_client.h"
#include "forebay/base/sse.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/json_work.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/tools/text.h"

namespace forebay::env::mcp {
namespace {

constexpr size_t kShownBytes = 300;

class Http final : public Transport {
 public:
  Http(std::shared_ptr<HttpClient> client, JsonWork work, HttpTransportOptions options)
      : client_(std::move(client)), work_(work), options_(std::move(options)) {}

  Task<Result<Reply>> Request(std::string method, Json params, size_t params_bytes,
                              TimePoint deadline) override {
    if (broken_) co_return Lost();
    const int64_t id = ++last_id_;
    std::string name;
    if (const auto named = params.find("name"); named != params.end() && named->is_string()) {
      name = named->get<std::string>();
    }
    Task<Result<std::string>> writing =
        work_.Run(params_bytes, deadline, [id, method, params = std::move(params)] {
          return Result<std::string>(RequestText(id, method, params));
        });
    Result<std::string> text = co_await std::move(writing);
    if (!text.ok()) co_return text.status();
    HttpCall call = Call(std::move(*text), deadline);
    call.repeatable = method != "tools/call";
    if (version_ == kStateless) {
      call.request.headers.Set("Mcp-Method", method);
      if (!name.empty()) call.request.headers.Set("Mcp-Name", name);
    }
    Task<Result<std::unique_ptr<HttpStream>>> opening = client_->Open(std::move(call));
    Result<std::unique_ptr<HttpStream>> stream = co_await std::move(opening);
    if (!stream.ok()) co_return stream.status();
    const HttpHeaders& headers = (*stream)->headers();
    if (method == "initialize") {
      if (const auto session = headers.Get("Mcp-Session-Id")) session_ = std::string(*session);
    }
    const std::string_view type = headers.Get("Content-Type").value_or("");
    if ((*stream)->status() == 200 && type.starts_with("text/event-stream")) {
      Task<Result<Reply>> reading = ReadEvents(std::move(*stream), id, deadline);
      Result<Reply> reply = co_await std::move(reading);
      co_return reply;
    }
    Task<Result<Reply>> reading = ReadBody(std::move(*stream), id, deadline);
    Result<Reply> reply = co_await std::move(reading);
    co_return reply;
  }

  Task<Status> Notify(std::string method, Json params, TimePoint deadline) override {
    if (broken_) co_return Lost();
    HttpCall call = Call(NotificationText(method, params), deadline);
    if (version_ == kStateless) call.request.headers.Set("Mcp-Method", method);
    Task<Result<HttpResponse>> sending = client_->Send(std::move(call));
    const Result<HttpResponse> response = co_await std::move(sending);
    if (!response.ok()) co_return response.status();
    if (response->status >= 300) co_return Refused(response->status, response->body);
    co_return OkStatus();
  }

  void UseVersion(const std::string& version) override { version_ = version; }
  bool broken() const override { return broken_; }
  void Kill() override { broken_ = true; }

  Task<void> End(TimePoint deadline) override {
    broken_ = true;
    if (session_.empty()) co_return;
    HttpCall call = Call("", deadline);
    call.request.method = "DELETE";
    Task<Result<HttpResponse>> sending = client_->Send(std::move(call));
    const Result<HttpResponse> ignored = co_await std::move(sending);  // servers may refuse it
  }

 private:
  HttpCall Call(std::string body, TimePoint deadline) const {
    HttpCall call;
    call.request.method = "POST";
    call.request.url = options_.url;
    call.request.headers = {{"Content-Type", "application/json"},
                            {"Accept", "application/json, text/event-stream"}};
    if (!session_.empty()) call.request.headers.Set("Mcp-Session-Id", session_);
    if (!version_.empty()) call.request.headers.Set("MCP-Protocol-Version", version_);
    if (!options_.bearer.empty()) {
      call.request.headers.Set("Authorization", "Bearer " + options_.bearer);
    }
    call.request.body = std::move(body);
    call.deadline = deadline;
    call.body_bytes_max = options_.message_bytes_max;
    return call;
  }

  // The answer among whatever else the server has to say meanwhile.
  Task<Result<Reply>> ReadEvents(std::unique_ptr<HttpStream> stream, int64_t id,
                                 TimePoint deadline) {
    SseReader reader(std::move(stream));
    while (true) {
      Task<Result<std::optional<SseEvent>>> reading = reader.Next();
      Result<std::optional<SseEvent>> event = co_await std::move(reading);
      if (!event.ok()) co_return event.status();
      if (!event->has_value()) {
        co_return Unavailable("the MCP server ended its stream of events before it had answered");
      }
      if ((*event)->data.empty()) continue;  // it only gives an id to come back with
      const auto data = std::make_shared<const std::string>(std::move((*event)->data));
      Task<Result<ServerMessage>> parsing = Parse(data, deadline);
      Result<ServerMessage> message = co_await std::move(parsing);
      if (!message.ok()) co_return message.status();
      if (auto* reply = std::get_if<ReplyMessage>(&*message)) {
        if (reply->id == id) co_return std::move(reply->reply);
      } else if (const auto* request = std::get_if<RequestMessage>(&*message)) {
        Task<Result<HttpResponse>> answering = client_->Send(Call(AnswerText(*request), deadline));
        const Result<HttpResponse> ignored = co_await std::move(answering);
      }
    }
  }

  Task<Result<ServerMessage>> Parse(std::shared_ptr<const std::string> text, TimePoint deadline) {
    const size_t bytes = text->size();
    return work_.Run(bytes, deadline,
                     [text = std::move(text)] { return ParseServerMessage(*text); });
  }

  Task<Result<Reply>> ReadBody(std::unique_ptr<HttpStream> stream, int64_t id, TimePoint deadline) {
    const auto text = std::make_shared<std::string>();
    std::string& body = *text;
    while (true) {
      Task<Result<std::optional<std::string>>> reading = stream->Read();
      Result<std::optional<std::string>> piece = co_await std::move(reading);
      if (!piece.ok()) co_return piece.status();
      if (!piece->has_value()) break;
      body += **piece;
    }
    const int status = stream->status();
    if (status == 404 && !session_.empty()) {
      broken_ = true;  // the server has forgotten the session
      co_return Lost();
    }
    // An error of JSON-RPC comes with an HTTP status of its own.
    Task<Result<ServerMessage>> parsing = Parse(text, deadline);
    Result<ServerMessage> message = co_await std::move(parsing);
    if (message.ok()) {
      auto* reply = std::get_if<ReplyMessage>(&*message);
      if (reply != nullptr && reply->id == id) co_return std::move(reply->reply);
    }
    if (status >= 300) co_return Refused(status, body);
    if (!message.ok()) co_return message.status();
    co_return DataLoss(fmt::format("the MCP server answered a request with something else: {}",
                                   PrintableText(body, kShownBytes)));
  }

  Status Lost() const {
    return Unavailable(fmt::format("the session with the MCP server {} has ended", options_.url));
  }

  Status Refused(int status, std::string_view body) const {
    const std::string text =
        fmt::format("the MCP server {} answered with HTTP status {} ({}): {}", options_.url, status,
                    HttpReason(status), PrintableText(body, kShownBytes));
    // The request is at fault, or we are not let in; else the server is.
    return status >= 400 && status < 500 ? FailedRequest(status, text) : Unavailable(text);
  }

  static Status FailedRequest(int status, const std::string& text) {
    return status == 408 || status == 429 ? Unavailable(text) : Internal(text);
  }

  std::shared_ptr<HttpClient> client_;
  const JsonWork work_;
  const HttpTransportOptions options_;
  int64_t last_id_ = 0;
  std::string session_, version_;
  bool broken_ = false;
};

}  // namespace

std::shared_ptr<Transport> MakeHttp(std::shared_ptr<HttpClient> client, JsonWork work,
                                    HttpTransportOptions options) {
  return std::make_shared<Http>(std::move(client), work, std::move(options));
}

}  // namespace forebay::env::mcp
