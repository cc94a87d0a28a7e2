// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/base/websocket.h"

#include <fmt/core.h>
#include <openssl/rand.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connect.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/http/fiber.h"
#include "forebay/base/http/parser.h"
#include "forebay/base/http/timer.h"
#include "forebay/base/http/transport.h"
#include "forebay/base/http/websocket_frames.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

using http::Connection;
using http::Fiber;
using http::ScopedTimer;
using http::WebSocketMessage;
using http::WebSocketOpcode;
using http::WebSocketReader;

constexpr Duration kWriteMax =
    std::chrono::seconds(60);  // of one write to a peer that reads nothing
constexpr size_t kHeaderBytesMax = size_t{64} << 10;
constexpr size_t kRefusalBytesMax = size_t{64} << 10;  // the body of a server that says no
constexpr size_t kOutboxBytesMax = size_t{64} << 20;

template <size_t N>
std::array<unsigned char, N> Random() {
  std::array<unsigned char, N> bytes;
  FB_CHECK(RAND_bytes(bytes.data(), static_cast<int>(N)) == 1, "the system has random bytes");
  return bytes;
}

uint32_t RandomMask() {
  const auto bytes = Random<4>();
  uint32_t mask = 0;
  std::memcpy(&mask, bytes.data(), sizeof(mask));
  return mask;
}

class Client final : public WebSocket {
 public:
  Client(Loop& loop, const WebSocketOptions& options, http::TlsContext tls, std::string origin,
         std::shared_ptr<Connection> connection)
      : loop_(loop),
        origin_(std::move(origin)),
        messages_max_(options.messages_max),
        tls_(std::move(tls)),
        connection_(std::move(connection)),
        frames_(options.message_bytes_max) {
    reader_ = ReadAlways();
  }
  ~Client() override {
    reader_ = {};
    writer_ = {};
    connection_->Close();
  }

  Task<Status> Send(std::string text, TimePoint deadline) override {
    if (!failure_.ok()) co_return failure_;
    if (outbox_.size() + text.size() > kOutboxBytesMax) {
      co_return ResourceExhausted(
          fmt::format("{} bytes wait to be sent to {}", outbox_.size(), origin_));
    }
    Write(WebSocketOpcode::kText, text);
    Task<Status> flushing = Flushed(deadline);
    const Status flushed = co_await std::move(flushing);
    co_return flushed;
  }

  Task<Result<std::string>> Receive(TimePoint deadline) override {
    while (messages_.empty()) {
      if (!failure_.ok()) co_return failure_;
      const OneShot<bool> woken(loop_);
      receiver_ = woken;
      const ScopedTimer timer(loop_, deadline, [woken] { woken.Set(false); });
      auto wait = woken.Wait();
      const bool came = co_await wait;
      receiver_.reset();
      if (!came && messages_.empty() && failure_.ok()) {
        co_return DeadlineExceeded(fmt::format("{} sent no message until the deadline", origin_));
      }
    }
    std::string message = std::move(messages_.front());
    messages_.pop_front();
    co_return message;
  }

  Task<void> Close(TimePoint deadline) override {
    if (failure_.ok()) {
      closing_ = true;
      Write(WebSocketOpcode::kClose, http::WebSocketClosePayload(1000, ""));
      const OneShot<bool> ended(loop_);
      closer_ = ended;
      const ScopedTimer timer(loop_, deadline, [ended] { ended.Set(false); });
      auto wait = ended.Wait();
      co_await wait;
      closer_.reset();
      Fail(Unavailable("it was closed"));
    }
    connection_->Close();
  }

  bool broken() const override { return !failure_.ok(); }

 private:
  Fiber ReadAlways() {
    while (true) {
      while (true) {
        Result<std::optional<WebSocketMessage>> next = frames_.Next(&connection_->input());
        if (!next.ok()) {
          Fail(next.status());
          co_return;
        }
        if (!next->has_value()) break;
        if (!Take(std::move(**next))) co_return;
      }
      Task<Status> reading = connection_->Read(TimePoint::max());
      const Status read = co_await std::move(reading);
      if (!read.ok()) {
        Fail(read);
        co_return;
      }
    }
  }

  bool Take(WebSocketMessage message) {
    switch (message.opcode) {
      case WebSocketOpcode::kPing:
        if (outbox_.size() < kOutboxBytesMax) Write(WebSocketOpcode::kPong, message.payload);
        return true;
      case WebSocketOpcode::kPong:
        return true;
      case WebSocketOpcode::kClose:
        if (!closing_) Write(WebSocketOpcode::kClose, message.payload.substr(0, 2));
        Fail(Unavailable(
            fmt::format("the peer has closed: {}", http::DescribeWebSocketClose(message.payload))));
        return false;
      default:
        break;
    }
    if (messages_.size() >= messages_max_) {
      Fail(ResourceExhausted(
          fmt::format("{} messages came and were not received", messages_.size())));
      return false;
    }
    messages_.push_back(std::move(message.payload));
    if (receiver_) receiver_->Set(true);
    return true;
  }

  void Write(WebSocketOpcode opcode, std::string_view payload) {
    outbox_ += http::WebSocketFrame(opcode, payload, RandomMask());
    if (writing_) return;
    writing_ = true;
    // Not inside the call: the fiber that calls may be the one that is replaced.
    loop_.Post([this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) writer_ = WriteAll();
    });
  }

  Fiber WriteAll() {
    while (!outbox_.empty()) {
      std::string bytes = std::exchange(outbox_, {});
      Task<Status> writing = connection_->Write(std::move(bytes), loop_.Now() + kWriteMax);
      const Status written = co_await std::move(writing);
      if (!written.ok()) {
        outbox_.clear();
        if (failure_.ok()) Fail(written);
      }
    }
    writing_ = false;
    for (const OneShot<bool>& flushed : std::exchange(flushed_, {})) flushed.Set(true);
  }

  Task<Status> Flushed(TimePoint deadline) {
    const OneShot<bool> flushed(loop_);
    flushed_.push_back(flushed);
    const ScopedTimer timer(loop_, deadline, [flushed] { flushed.Set(false); });
    auto wait = flushed.Wait();
    const bool done = co_await wait;
    if (!done && failure_.ok()) {
      co_return DeadlineExceeded(fmt::format("{} did not take a message in time", origin_));
    }
    co_return failure_;
  }

  void Fail(const Status& reason) {
    if (!failure_.ok()) return;
    failure_ = reason.WithContext(origin_);
    if (receiver_) receiver_->Set(true);
    if (closer_) closer_->Set(true);
    for (const OneShot<bool>& flushed : std::exchange(flushed_, {})) flushed.Set(true);
  }

  Loop& loop_;
  const std::string origin_;
  const size_t messages_max_;
  const http::TlsContext tls_;
  const std::shared_ptr<Connection> connection_;
  WebSocketReader frames_;
  Status failure_;
  bool closing_ = false;
  std::deque<std::string> messages_;
  std::optional<OneShot<bool>> receiver_, closer_;
  std::string outbox_;
  bool writing_ = false;
  std::list<OneShot<bool>> flushed_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Fiber reader_, writer_;
};

Result<HttpUrl> ParseWebSocketUrl(std::string url) {
  for (const auto& [ours, theirs] : {std::pair{"ws://", "http://"}, {"wss://", "https://"}}) {
    if (url.starts_with(ours)) url.replace(0, std::strlen(ours), theirs);
  }
  return ParseUrl(url);
}

// The request of the handshake.
Result<std::string> Handshake(const HttpUrl& url, const WebSocketOptions& options,
                              const std::string& key) {
  std::string host = url.unix_path.empty() ? url.Origin() : "http://localhost";
  host.erase(0, host.find("//") + 2);
  std::string text = fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: 13\r\n",
      url.target, host, key);
  for (const auto& [name, value] : options.headers.fields()) {
    if ((name + value).find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      return InvalidArgument(fmt::format("the header '{}' cannot be sent: a line end in it", name));
    }
    text += fmt::format("{}: {}\r\n", name, value);
  }
  return text + "\r\n";
}

Status CheckAnswer(const HttpResponse& answer, const std::string& key) {
  if (answer.status != 101) {
    return Unavailable(fmt::format("the server does not open a WebSocket: HTTP status {} ({})",
                                   answer.status, HttpReason(answer.status)));
  }
  if (answer.headers.Get("Sec-WebSocket-Accept").value_or("") != http::WebSocketAccept(key)) {
    return DataLoss("the server's answer is no handshake of a WebSocket");
  }
  if (answer.headers.Get("Sec-WebSocket-Extensions")) {
    return DataLoss("the server uses an extension of WebSocket that was not asked for");
  }
  return OkStatus();
}

}  // namespace

Task<Result<std::unique_ptr<WebSocket>>> WebSocket::Connect(Loop& loop, std::string url,
                                                            WebSocketOptions options,
                                                            TimePoint deadline) {
  const Result<HttpUrl> parsed = ParseWebSocketUrl(std::move(url));
  if (!parsed.ok()) co_return parsed.status();
  const std::string origin = parsed->Origin();
  const auto random = Random<16>();
  const std::string key =
      http::Base64({reinterpret_cast<const char*>(random.data()), random.size()});
  Result<std::string> request = Handshake(*parsed, options, key);
  if (!request.ok()) co_return request.status();
  http::TlsContext tls;
  if (parsed->tls) {
    Result<http::TlsContext> made = http::ClientTls(options.ca_file);
    if (!made.ok()) co_return made.status();
    tls = std::move(*made);
  }
  Task<Result<std::shared_ptr<Connection>>> connecting =
      http::Connect(loop, *parsed, tls.get(), deadline);
  Result<std::shared_ptr<Connection>> connected = co_await std::move(connecting);
  if (!connected.ok()) co_return connected.status().WithContext(origin);
  const std::shared_ptr<Connection> connection = std::move(*connected);
  // A dropped coroutine must close it.
  struct Closer {
    std::shared_ptr<Connection> connection;
    ~Closer() {
      if (connection) connection->Close();
    }
  } closer{connection};

  Task<Status> writing = connection->Write(std::move(*request), deadline);
  const Status written = co_await std::move(writing);
  if (!written.ok()) co_return written.WithContext(origin);
  http::HttpParser parser({.request = false,
                           .header_bytes_max = kHeaderBytesMax,
                           .body_bytes_max = kRefusalBytesMax,
                           .no_body = true});
  while (!parser.header_done()) {
    Task<Status> reading = connection->Read(deadline);
    Status status = co_await std::move(reading);
    if (status.ok()) status = parser.Feed(&connection->input());
    if (!status.ok()) co_return status.WithContext(origin);
  }
  const Status answered = CheckAnswer(parser.response(), key);
  if (!answered.ok()) co_return answered.WithContext(origin);
  closer.connection.reset();
  co_return std::unique_ptr<WebSocket>(
      std::make_unique<Client>(loop, options, std::move(tls), origin, connection));
}

}  // namespace forebay
