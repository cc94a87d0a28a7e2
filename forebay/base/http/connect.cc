// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/base/http/connect.h"

#include <fmt/core.h>
#include <sys/un.h>

#include <boost/asio/error.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/resolver_base.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/system/error_code.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/http/timer.h"
#include "forebay/base/http/transport.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Endpoint = asio::generic::stream_protocol::endpoint;
using asio::ip::tcp;

// What only makes a connection better, or ends it.
void Ignore(const error_code&) {}

struct Resolved {
  error_code error;
  std::vector<Endpoint> endpoints;
};

Task<Resolved> Resolve(Loop& loop, const HttpUrl& url, TimePoint deadline) {
  Resolved out;
  if (!url.unix_path.empty()) {
    if (url.unix_path.size() >= sizeof(sockaddr_un::sun_path)) {
      out.error = asio::error::name_too_long;
    } else {
      out.endpoints.emplace_back(asio::local::stream_protocol::endpoint(url.unix_path));
    }
    co_return out;
  }
  error_code no_address;
  const asio::ip::address address = asio::ip::make_address(url.host, no_address);
  if (!no_address) {
    out.endpoints.emplace_back(tcp::endpoint(address, url.port));
    co_return out;
  }
  const auto resolver = std::make_shared<tcp::resolver>(*loop.asio());
  const OneShot<Resolved> done(loop);
  resolver->async_resolve(
      url.host, std::to_string(url.port), asio::ip::resolver_base::numeric_service,
      [resolver, done](const error_code& error, const tcp::resolver::results_type& found) {
        Resolved resolved{.error = error};
        for (const auto& entry : found) {
          resolved.endpoints.emplace_back(entry.endpoint());
        }
        done.Set(std::move(resolved));
      });
  const ScopedTimer timer(loop, deadline, [done] { done.Set({.error = asio::error::timed_out}); });
  auto waiting = done.Wait();
  out = co_await waiting;
  co_return out;
}

}  // namespace

Task<Result<std::shared_ptr<Connection>>> Connect(Loop& loop, HttpUrl url, SSL_CTX* tls,
                                                  TimePoint deadline) {
  FB_CHECK(loop.asio() != nullptr, "sockets need a loop on real time");
  Task<Resolved> resolving = Resolve(loop, url, deadline);
  Resolved resolved = co_await std::move(resolving);
  error_code error = resolved.error;
  if (!error && resolved.endpoints.empty()) error = asio::error::host_not_found;
  for (const Endpoint& endpoint : resolved.endpoints) {
    const auto socket = std::make_shared<StreamSocket>(*loop.asio());
    if (socket->open(endpoint.protocol(), error)) continue;
    const OneShot<error_code> done(loop);
    socket->async_connect(endpoint, [socket, done](const error_code& e) { done.Set(e); });
    {
      const ScopedTimer timer(loop, deadline, [socket, done] {
        if (done.is_set()) return;  // in time, though nobody has been told yet
        done.Set(asio::error::timed_out);
        error_code ignored;
        Ignore(socket->close(ignored));
      });
      auto waiting = done.Wait();
      error = co_await waiting;
    }
    if (error == asio::error::timed_out) break;
    if (error) continue;
    error_code ignored;
    if (url.unix_path.empty()) Ignore(socket->set_option(tcp::no_delay(true), ignored));
    std::unique_ptr<Transport> transport = url.tls ? TlsTransport(std::move(*socket), tls, url.host)
                                                   : PlainTransport(std::move(*socket));
    std::shared_ptr<Connection> connection =
        std::make_shared<Connection>(loop, std::move(transport));
    if (url.tls) {
      Task<Status> shaking = connection->Handshake(deadline);
      const Status shaken = co_await std::move(shaking);
      if (!shaken.ok()) {
        connection->Close();
        co_return shaken;
      }
    }
    co_return connection;
  }
  if (error == asio::error::timed_out)
    co_return DeadlineExceeded("no connection before the deadline");
  co_return Unavailable("cannot connect: " + error.message());
}

}  // namespace forebay::http
