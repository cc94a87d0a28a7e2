// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/http/parser.h"
#include "forebay/base/http/pool.h"
#include "forebay/base/http/transport.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

using http::Connection;
using http::ConnectionPool;
using http::HttpParser;

bool Repeatable(const HttpCall& call) {
  const std::string& method = call.request.method;
  return call.repeatable || method == "GET" || method == "HEAD" || method == "PUT" ||
         method == "DELETE";
}

bool IsToken(std::string_view text) {
  constexpr std::string_view kOther = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           kOther.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// The bytes of a request. Nothing that a caller puts in may end a line.
Result<std::string> Serialize(const HttpRequest& request, const HttpUrl& url) {
  if (!IsToken(request.method))
    return InvalidArgument("'" + request.method + "' is no HTTP method");
  std::string host = url.unix_path.empty() ? url.Origin() : "http://localhost";
  host.erase(0, host.find("//") + 2);
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, url.target, host);
  for (const auto& [name, value] : request.headers.fields()) {
    if (!IsToken(name) || value.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      return InvalidArgument(fmt::format("the header '{}' cannot be sent: a line end in it", name));
    }
    out += fmt::format("{}: {}\r\n", name, value);
  }
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    out += fmt::format("Content-Length: {}\r\n", request.body.size());
  }
  out += "\r\n";
  out += request.body;
  return out;
}

// An answer whose header is there.
class Stream final : public HttpStream {
 public:
  Stream(std::unique_ptr<ConnectionPool::Lease> lease, std::unique_ptr<HttpParser> parser,
         std::string what, TimePoint deadline)
      : lease_(std::move(lease)),
        parser_(std::move(parser)),
        what_(std::move(what)),
        deadline_(deadline) {}

  int status() const override { return parser_->response().status; }
  const HttpHeaders& headers() const override { return parser_->response().headers; }

  Task<Result<std::optional<std::string>>> Read() override {
    while (true) {
      if (!failure_.ok()) co_return failure_;
      std::string bytes = parser_->TakeBody();
      if (!bytes.empty()) co_return std::optional<std::string>(std::move(bytes));
      if (parser_->done()) {
        if (lease_) {
          lease_->keep = parser_->keep_alive() && (*lease_)->input().empty();
          lease_.reset();
        }
        co_return std::optional<std::string>();
      }
      Connection& connection = **lease_;
      Status status = parser_->Feed(&connection.input());
      if (status.ok() && !parser_->done() && parser_->body_bytes() == taken_) {
        Task<Status> reading = connection.Read(deadline_);
        status = co_await std::move(reading);
        if (status.ok()) {
          status = parser_->Feed(&connection.input());
        } else if (status.code() == StatusCode::kUnavailable) {
          status = parser_->FeedEnd();  // some bodies end with the connection
        }
      }
      taken_ = parser_->body_bytes();
      if (!status.ok()) {
        failure_ = status.WithContext(what_);
        lease_.reset();
      }
    }
  }

 private:
  std::unique_ptr<ConnectionPool::Lease> lease_;
  std::unique_ptr<HttpParser> parser_;
  const std::string what_;
  const TimePoint deadline_;
  size_t taken_ = 0;
  Status failure_;
};

class Client final : public HttpClient {
 public:
  Client(Loop& loop, HttpClientOptions options, http::TlsContext tls)
      : options_(std::move(options)),
        pool_(std::make_shared<ConnectionPool>(loop, options_, std::move(tls))) {}
  ~Client() override { pool_->Shutdown(); }

  Task<Result<HttpResponse>> Send(HttpCall call) override {
    Task<Result<std::unique_ptr<HttpStream>>> opening = Open(std::move(call));
    Result<std::unique_ptr<HttpStream>> stream = co_await std::move(opening);
    if (!stream.ok()) co_return stream.status();
    HttpResponse response{.status = (*stream)->status(), .headers = (*stream)->headers()};
    while (true) {
      Task<Result<std::optional<std::string>>> reading = (*stream)->Read();
      Result<std::optional<std::string>> bytes = co_await std::move(reading);
      if (!bytes.ok()) co_return bytes.status();
      if (!bytes->has_value()) co_return response;
      response.body += **bytes;
    }
  }

  Task<Result<std::unique_ptr<HttpStream>>> Open(HttpCall call) override {
    const std::shared_ptr<ConnectionPool> pool = pool_;
    Result<HttpUrl> url = ParseUrl(call.request.url);
    if (!url.ok()) co_return url.status();
    Result<std::string> bytes = Serialize(call.request, *url);
    if (!bytes.ok()) co_return bytes.status();
    const std::string what =
        fmt::format("{} {}{}", call.request.method, url->Origin(), url->target.substr(0, 200));
    const HttpParser::Options limits{.request = false,
                                     .header_bytes_max = options_.header_bytes_max,
                                     .body_bytes_max = call.body_bytes_max,
                                     .no_body = call.request.method == "HEAD"};
    const bool repeatable = Repeatable(call);
    for (bool fresh = false;; fresh = true) {
      Task<Result<std::unique_ptr<ConnectionPool::Lease>>> taking =
          pool->Take(*url, fresh, call.deadline);
      Result<std::unique_ptr<ConnectionPool::Lease>> lease = co_await std::move(taking);
      if (!lease.ok()) co_return lease.status().WithContext(what);
      Connection& connection = ***lease;
      Task<Status> writing = connection.Write(*bytes, call.deadline);
      const Status written = co_await std::move(writing);
      // A server may answer and close before it has read everything: the answer is what counts.
      auto parser = std::make_unique<HttpParser>(limits);
      bool answered = false;
      Status status;
      while (status.ok() && !parser->header_done()) {
        Task<Status> reading = connection.Read(call.deadline);
        status = co_await std::move(reading);
        answered = answered || !connection.input().empty();
        if (status.code() == StatusCode::kUnavailable && answered) status = OkStatus();
        if (!status.ok()) break;
        while (status.ok() && !connection.input().empty()) {
          status = parser->Feed(&connection.input());
          const int code = parser->header_done() ? parser->response().status : 0;
          if (code < 100 || code >= 200 || code == 101) break;
          parser = std::make_unique<HttpParser>(limits);  // "100 Continue" and its kind
        }
        if (status.ok() && connection.ended() && !parser->header_done()) {
          status = Unavailable("the server closed the connection in the middle of an answer");
        }
      }
      if (status.ok()) {
        std::unique_ptr<HttpStream> stream =
            std::make_unique<Stream>(std::move(*lease), std::move(parser), what, call.deadline);
        co_return stream;
      }
      const bool stale = (*lease)->reused && !answered &&
                         status.code() == StatusCode::kUnavailable && !connection.timed_out();
      if (stale && repeatable && !fresh) continue;
      if (!written.ok() && status.code() == StatusCode::kUnavailable) {
        co_return written.WithContext(what);
      }
      co_return status.WithContext(what);
    }
  }

  size_t connections() const override { return pool_->connections(); }

 private:
  const HttpClientOptions options_;
  const std::shared_ptr<ConnectionPool> pool_;
};

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::Create(Loop& loop, HttpClientOptions options) {
  FB_ASSIGN_OR_RETURN(http::TlsContext tls, http::ClientTls(options.ca_file));
  return std::unique_ptr<HttpClient>(
      std::make_unique<Client>(loop, std::move(options), std::move(tls)));
}

}  // namespace forebay
