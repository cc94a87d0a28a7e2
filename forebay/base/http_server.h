// HttpServer: HTTP/1.1 on a Loop, each request a coroutine, streaming answers with backpressure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {

// One request and its answer, on the server's loop. Answer once: Respond, or Begin, Write..., End.
// kUnavailable: the client has gone (kDeadlineExceeded: it does not read); nothing more can be
// sent.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual Task<Status> Respond(HttpResponse response) = 0;
  // A body of unknown length: waits while the client does not read.
  virtual Task<Status> Begin(int status, HttpHeaders headers) = 0;
  virtual Task<Status> Write(std::string piece) = 0;
  virtual Task<Status> End() = 0;

  virtual bool begun() const = 0;  // the answer's header has been sent
  // Whether the client has closed the connection (or its half: such a client gets no answer).
  virtual bool disconnected() const = 0;
  // Runs once on the loop when it does, while the handler runs; null removes it.
  virtual void OnDisconnect(std::function<void()> fn) = 0;
};

struct HttpServerOptions {
  // "tcp:127.0.0.1:8000" (port 0: any) or "unix:/path/of.sock" (mode 0600; a stale one is
  // replaced).
  std::vector<std::string> listen;
  std::string certificate_file, key_file;  // PEM: TLS on tcp addresses
  // Asked before the body is read; false is answered with 401. null: anybody may, which is refused
  // beyond loopback. A web page in a browser on this machine is anybody too: without `authorize`
  // requests over TCP with a foreign Origin or Host are answered with 403, whatever their method
  // (http/local_pages.h).
  std::function<bool(const HttpRequest&)> authorize;
  // Names that requests may be for beside localhost, loopback addresses and the hosts of `listen`.
  std::vector<std::string> allowed_hosts;
  // The body of an answer that the server gives by itself (400, 401, 403, 408, 413, 431, 500, 503)
  // and its content type; null: a line of text.
  std::function<std::string(int status, std::string_view message)> error_body;
  std::string error_content_type = "text/plain";

  size_t connections_max = 4096;  // more wait in the kernel's queue
  size_t header_bytes_max = size_t{32} << 10;
  size_t body_bytes_max = size_t{16} << 20;
  Duration header_deadline = std::chrono::seconds(10);  // from the first byte to the header's end
  Duration body_deadline = std::chrono::seconds(60);
  Duration idle_deadline = std::chrono::seconds(75);   // between requests
  Duration write_deadline = std::chrono::seconds(30);  // for one piece of an answer to be taken
  // Of an answer, in the kernel and not yet sent: with more, what a client does not read would look
  // written. (Over TCP it can hold as much again as the client's own buffer.)
  int unsent_bytes_max = 16 << 10;
};

struct HttpServerStats {
  int64_t connections = 0, connections_total = 0;
  int64_t requests = 0;   // handed to the handler
  int64_t refused = 0;    // answered by the server itself (not HTTP, too long, too slow, 401, 403)
  int64_t timed_out = 0;  // connections closed by a deadline
};

// All calls on the loop, which must be on real time and outlive it.
class HttpServer {
 public:
  // Answers the exchange; what it leaves unanswered becomes a 500. It and what it refers to must
  // live until Stop has returned.
  using Handler = std::function<Task<void>(HttpExchange&)>;

  // Listens at once. kInvalidArgument (address, certificate, or an address beyond loopback without
  // authorize and TLS), kAlreadyExists (taken), or what the system said.
  static Result<std::unique_ptr<HttpServer>> Start(Loop& loop, HttpServerOptions options,
                                                   Handler handler);
  virtual ~HttpServer() = default;

  // "http://127.0.0.1:8000", "unix:/path/of.sock": what to put before ":/target" or "/target".
  virtual const std::vector<std::string>& addresses() const = 0;
  virtual HttpServerStats stats() const = 0;

  // Takes no more connections, closes idle ones, and waits for the handlers that run; at the
  // deadline their connections are closed (so OnDisconnect runs) and they are waited for again.
  // Call once, and before destruction.
  virtual Task<void> Stop(TimePoint deadline) = 0;
};

}  // namespace forebay
