// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/base/http/exchange.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {

std::string Exchange::Head(int status, const HttpHeaders& headers) const {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, HttpReason(status));
  for (const auto& [name, value] : headers.fields()) {
    FB_CHECK(value.find_first_of("\r\n") == std::string::npos, "a header is one line");
    out += fmt::format("{}: {}\r\n", name, value);
  }
  if (!options_.keep_alive) out += "Connection: close\r\n";
  return out;
}

Task<Status> Exchange::Send(std::string bytes) {
  if (connection_->ended()) {
    connection_->Close();
    co_return Unavailable("the client has closed the connection");
  }
  Task<Status> writing =
      connection_->Write(std::move(bytes), loop_.Now() + options_.write_deadline);
  const Status written = co_await std::move(writing);
  if (!written.ok()) connection_->Close();
  co_return written;
}

Task<Status> Exchange::Respond(HttpResponse response) {
  FB_CHECK(!begun_, "an exchange is answered once");
  begun_ = true;
  std::string bytes = Head(response.status, response.headers);
  bytes += fmt::format("Content-Length: {}\r\n\r\n", response.body.size());
  if (request_.method != "HEAD") bytes += response.body;
  Task<Status> sending = Send(std::move(bytes));
  const Status sent = co_await std::move(sending);
  ended_ = sent.ok();
  keep_alive_ = options_.keep_alive;
  co_return sent;
}

Task<Status> Exchange::Begin(int status, HttpHeaders headers) {
  FB_CHECK(!begun_, "an exchange is answered once");
  begun_ = true;
  // HTTP/1.0 knows no chunks: there the connection's end ends the body.
  if (!options_.http11) options_.keep_alive = false;
  std::string bytes = Head(status, headers);
  bytes += options_.http11 ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  Task<Status> sending = Send(std::move(bytes));
  co_return co_await std::move(sending);
}

Task<Status> Exchange::Write(std::string piece) {
  FB_CHECK(begun_ && !ended_, "pieces come between Begin and End");
  if (piece.empty() || request_.method == "HEAD") co_return OkStatus();
  std::string bytes =
      options_.http11 ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::move(piece);
  Task<Status> sending = Send(std::move(bytes));
  co_return co_await std::move(sending);
}

Task<Status> Exchange::End() {
  FB_CHECK(begun_ && !ended_, "End follows Begin");
  ended_ = true;
  keep_alive_ = options_.keep_alive;
  if (!options_.http11) co_return OkStatus();
  Task<Status> sending = Send("0\r\n\r\n");
  const Status sent = co_await std::move(sending);
  ended_ = sent.ok();
  co_return sent;
}

}  // namespace forebay::http
