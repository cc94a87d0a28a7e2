// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/http/exchange.h"
#include "forebay/base/http/local_pages.h"
#include "forebay/base/http/parser.h"
#include "forebay/base/http/timer.h"
#include "forebay/base/http/transport.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/socket.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

using http::Connection;
using http::Exchange;
using http::HttpParser;

constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // out of descriptors
constexpr auto kLinger = std::chrono::seconds(2);
constexpr size_t kLingerBytesMax = size_t{64} << 20;

class Server final : public HttpServer {
 public:
  Server(Loop& loop, HttpServerOptions options, Handler handler)
      : loop_(loop),
        options_(std::move(options)),
        handler_(std::move(handler)),
        hosts_(options_.allowed_hosts) {}
  ~Server() override {
    FB_CHECK(active_.empty(), "Stop an HttpServer before its end");
    CloseListeners();
  }

  Status Listen() {
    if (!options_.certificate_file.empty() || !options_.key_file.empty()) {
      FB_ASSIGN_OR_RETURN(tls_, http::ServerTls(options_.certificate_file, options_.key_file));
    }
    for (const std::string& text : options_.listen) {
      FB_ASSIGN_OR_RETURN(SocketAddress address, ParseSocketAddress(text));
      if (!address.is_unix) hosts_.push_back(address.host);
      FB_ASSIGN_OR_RETURN(const bool local, IsLoopback(address));
      if (!local && (options_.authorize == nullptr || tls_ == nullptr)) {
        return InvalidArgument(fmt::format(
            "{} can be reached from other machines: that needs a token, a certificate and its key; "
            "or listen on tcp:127.0.0.1:{} or a Unix socket",
            address.ToString(), address.port));
      }
      FB_ASSIGN_OR_RETURN(Fd fd, ListenOn(address));
      HttpUrl url{.tls = tls_ != nullptr, .host = address.host, .port = address.port};
      if (address.is_unix) url = {.unix_path = address.path};
      addresses_.push_back(url.Origin());
      listeners_.push_back({.fd = std::move(fd), .is_unix = address.is_unix, .path = address.path});
    }
    for (size_t i = 0; i < listeners_.size(); ++i) WaitForClients(i);
    return OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return addresses_; }
  HttpServerStats stats() const override {
    HttpServerStats out = stats_;
    out.connections = static_cast<int64_t>(active_.size());
    return out;
  }

  Task<void> Stop(TimePoint deadline) override {
    stopping_ = true;
    CloseListeners();
    if (accept_timer_ != 0) loop_.Cancel(accept_timer_);
    for (const auto& connection : idle_) connection->Close();
    const http::ScopedTimer timer(loop_, deadline, [this] {
      const std::set<std::shared_ptr<Connection>> all = active_;
      for (const auto& connection : all) connection->Close();
    });
    while (!active_.empty()) {
      changed_.emplace(loop_);
      auto waiting = changed_->Wait();
      co_await waiting;
    }
  }

 private:
  struct Listener {
    Fd fd;
    bool is_unix = false;
    std::string path;
  };

  void CloseListeners() {
    for (Listener& listener : listeners_) {
      loop_.Forget(listener.fd.get());
      if (listener.is_unix) unlink(listener.path.c_str());
    }
    listeners_.clear();
  }

  void WaitForClients(size_t i) {
    loop_.WhenReadable(listeners_[i].fd.get(), [this, i] { Accept(i); });
  }

  void Accept(size_t i) {
    if (stopping_) return;
    const Listener& listener = listeners_[i];
    // A few at a time: others on the loop want to go on as well.
    for (int n = 0; n < 64 && active_.size() < options_.connections_max; ++n) {
      Fd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          return AcceptLater();
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        continue;
      }
      Welcome(std::move(fd), listener.is_unix);
    }
    if (active_.size() >= options_.connections_max) {
      full_ = true;
    } else {
      WaitForClients(i);
    }
  }

  void AcceptLater() {
    full_ = true;
    accept_timer_ = loop_.RunAt(loop_.Now() + kAcceptPause, [this] {
      accept_timer_ = 0;
      AcceptAgain();
    });
  }
  void AcceptAgain() {
    if (stopping_ || !std::exchange(full_, false)) return;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      loop_.Forget(listeners_[i].fd.get());
      WaitForClients(i);
    }
  }

  void Welcome(Fd fd, bool is_unix) {
    if (!is_unix) {
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &options_.unsent_bytes_max,
                 sizeof(options_.unsent_bytes_max));
    } else {  // which has one buffer, the sender's
      setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &options_.unsent_bytes_max,
                 sizeof(options_.unsent_bytes_max));
    }
    http::StreamSocket socket(*loop_.asio());
    boost::system::error_code error;
    const boost::asio::generic::stream_protocol protocol(is_unix ? AF_UNIX : AF_INET, 0);
    if (socket.assign(protocol, fd.get(), error)) return;
    fd.Release();
    const bool tls = tls_ != nullptr && !is_unix;
    std::unique_ptr<http::Transport> transport =
        tls ? http::TlsTransport(std::move(socket), tls_.get(), "")
            : http::PlainTransport(std::move(socket));
    auto connection = std::make_shared<Connection>(loop_, std::move(transport));
    active_.insert(connection);
    ++stats_.connections_total;
    loop_.Spawn(Serve(connection, tls, /*pages=*/!is_unix), [this, connection] {
      connection->Close();
      if (connection->timed_out()) ++stats_.timed_out;
      active_.erase(connection);
      if (changed_) changed_->Set(true);
      if (accept_timer_ == 0) AcceptAgain();
    });
  }

  // `pages`: a browser can connect to where this connection came in.
  Task<void> Serve(std::shared_ptr<Connection> connection, bool tls, bool pages) {
    if (tls) {
      Task<Status> shaking = connection->Handshake(loop_.Now() + options_.header_deadline);
      const Status shaken = co_await std::move(shaking);
      if (!shaken.ok()) co_return;
    }
    while (!stopping_) {
      if (connection->input().empty()) {
        idle_.insert(connection);
        Task<Status> waiting = connection->Read(loop_.Now() + options_.idle_deadline);
        const Status waited = co_await std::move(waiting);
        idle_.erase(connection);
        if (!waited.ok() && connection->input().empty()) co_return;
      }
      Task<bool> serving = ServeOne(connection, pages);
      const bool again = co_await std::move(serving);
      if (!again) co_return;
    }
  }

  // Reads until `parser` has its header (or all); 0, the code of the error to answer
  // with, or -1: the client has gone.
  Task<int> ReadMessage(Connection* connection, HttpParser* parser, bool all, Duration within) {
    const TimePoint deadline = loop_.Now() + within;
    while (true) {
      const Status fed = parser->Feed(&connection->input());
      if (fed.code() == StatusCode::kResourceExhausted) {
        co_return parser->too_long_header() ? 431 : 413;
      }
      if (!fed.ok()) co_return 400;
      if (all ? parser->done() : parser->header_done()) co_return 0;
      // The deadline is for all of it: whoever sends a byte a second gains nothing.
      Task<Status> reading = connection->Read(deadline);
      const Status read = co_await std::move(reading);
      if (read.code() == StatusCode::kDeadlineExceeded) co_return 408;
      if (!read.ok()) co_return -1;
    }
  }

  // True when another request may follow.
  Task<bool> ServeOne(std::shared_ptr<Connection> connection, bool pages) {
    HttpParser parser({.request = true,
                       .header_bytes_max = options_.header_bytes_max,
                       .body_bytes_max = options_.body_bytes_max});
    Task<int> reading_header =
        ReadMessage(connection.get(), &parser, /*all=*/false, options_.header_deadline);
    int refusal = co_await std::move(reading_header);
    std::string reason;
    if (refusal == 0) {
      const HttpRequest& request = parser.request();
      if (!request.url.starts_with('/')) {
        refusal = 400;
        reason = "the target of a request begins with '/'";
      } else if (options_.authorize == nullptr && pages) {
        reason = http::ForeignPage(request.headers, hosts_);
        if (!reason.empty()) refusal = 403;
      } else if (options_.authorize != nullptr && !options_.authorize(request)) {
        refusal = 401;
        reason = "the Authorization header holds no valid key";
      }
    }
    if (refusal == 0 && !parser.done()) {
      if (parser.expects_continue()) {
        Task<Status> writing = connection->Write("HTTP/1.1 100 Continue\r\n\r\n",
                                                 loop_.Now() + options_.write_deadline);
        const Status written = co_await std::move(writing);
        if (!written.ok()) co_return false;
      }
      Task<int> reading_body =
          ReadMessage(connection.get(), &parser, /*all=*/true, options_.body_deadline);
      refusal = co_await std::move(reading_body);
    }
    if (refusal < 0) co_return false;  // nobody is there any more
    const bool http11 = refusal != 0 || parser.http11();
    const Exchange::Options exchange_options{
        .http11 = http11,
        .keep_alive = refusal == 0 && parser.keep_alive() && !stopping_,
        .write_deadline = options_.write_deadline};
    HttpRequest request = refusal == 0 ? std::move(parser.request()) : HttpRequest();
    if (refusal == 0) request.body = parser.TakeBody();
    Exchange exchange(loop_, connection, std::move(request), exchange_options);
    if (refusal != 0) {
      ++stats_.refused;
      Task<void> refusing = Refuse(&exchange, refusal, std::move(reason));
      co_await std::move(refusing);
      Task<void> lingering = Linger(connection);
      co_await std::move(lingering);
      co_return false;
    }
    ++stats_.requests;
    connection->Watch([&exchange] { exchange.Disconnect(); });
    Task<void> handling = handler_(exchange);
    co_await std::move(handling);
    connection->Watch(nullptr);
    exchange.OnDisconnect(nullptr);
    if (!exchange.begun()) {
      Task<void> refusing = Refuse(&exchange, 500, "the server did not answer this request");
      co_await std::move(refusing);
    }
    co_return exchange.reusable();
  }

  Task<void> Refuse(Exchange* exchange, int code, std::string reason) {
    if (reason.empty()) {
      switch (code) {
        case 408:
          reason = "the request took too long to arrive";
          break;
        case 413:
          reason = fmt::format("the body has more than {} bytes", options_.body_bytes_max);
          break;
        case 431:
          reason = fmt::format("the header has more than {} bytes", options_.header_bytes_max);
          break;
        default:
          reason = "this is not an HTTP/1.1 request";
      }
    }
    HttpResponse response{.status = code};
    response.headers.Set("Content-Type", options_.error_content_type);
    if (code == 401) response.headers.Set("WWW-Authenticate", "Bearer");
    response.body = options_.error_body ? options_.error_body(code, reason) : reason + "\n";
    exchange->CloseAfterwards();
    Task<Status> responding = exchange->Respond(std::move(response));
    const Status ignored = co_await std::move(responding);
    static_cast<void>(ignored);  // whoever sends garbage may be gone
  }

  // Reads on for a moment after an early answer: to close with bytes unread would reset the
  // connection, and the client might never see the answer.
  Task<void> Linger(std::shared_ptr<Connection> connection) {
    connection->EndWriting();
    const TimePoint deadline = loop_.Now() + kLinger;
    size_t bytes = 0;
    while (!connection->ended() && bytes < kLingerBytesMax && !stopping_) {
      Task<Status> reading = connection->Read(deadline);
      const Status read = co_await std::move(reading);
      bytes += connection->input().size();
      connection->input().clear();
      if (!read.ok()) co_return;
    }
  }

  Loop& loop_;
  const HttpServerOptions options_;
  const Handler handler_;
  std::vector<std::string> hosts_;  // that requests may be for, beside localhost
  http::TlsContext tls_;
  std::vector<Listener> listeners_;
  std::vector<std::string> addresses_;
  std::set<std::shared_ptr<Connection>> active_, idle_;
  std::optional<OneShot<bool>> changed_;
  HttpServerStats stats_;
  uint64_t accept_timer_ = 0;
  bool full_ = false;  // not waiting for clients
  bool stopping_ = false;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Start(Loop& loop, HttpServerOptions options,
                                                      Handler handler) {
  FB_CHECK(loop.asio() != nullptr, "sockets need a loop on real time");
  auto server = std::make_unique<Server>(loop, std::move(options), std::move(handler));
  FB_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace forebay
