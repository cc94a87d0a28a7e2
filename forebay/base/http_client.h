// HttpClient: HTTP/1.1 requests from a Loop, with deadlines, bounded answers and kept connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {

struct HttpClientOptions {
  // Beyond this requests to one origin wait for a connection, in order, until their deadline.
  size_t connections_per_origin_max = 256;
  Duration idle_max = std::chrono::seconds(20);  // an unused connection is closed after this
  size_t header_bytes_max = size_t{64} << 10;
  std::string ca_file;  // PEM, trusted for https; "": what the machine trusts
};

struct HttpCall {
  HttpRequest request;
  TimePoint deadline = TimePoint::max();  // for the whole exchange, waiting and connecting included
  size_t body_bytes_max = size_t{16} << 20;  // of the answer's body (of a stream: of all of it)
  // A kept connection may have been closed by the server in the instant we write. Requests that may
  // be sent twice are then tried again on a new one; GET, HEAD, PUT and DELETE always may.
  bool repeatable = false;
};

// The body of an answer as it comes. On the client's loop; the client may end before it. Dropping
// it before the end closes its connection, which tells the server to stop.
class HttpStream {
 public:
  virtual ~HttpStream() = default;
  virtual int status() const = 0;
  virtual const HttpHeaders& headers() const = 0;
  // The next bytes, at least one; nullopt at the end. What is not read is not taken from the
  // socket. kDeadlineExceeded, kUnavailable (broken off), kDataLoss (not HTTP), kResourceExhausted
  // (too long); after an error nothing more can be read.
  virtual Task<Result<std::optional<std::string>>> Read() = 0;
};

// On one loop on real time, which must outlive it. Nothing blocks. A Task that is dropped closes
// its connection. Errors: kInvalidArgument (URL), kUnavailable (cannot connect, broken off; names
// the origin), kDeadlineExceeded, kDataLoss (the answer is not HTTP), kResourceExhausted (header or
// body too long). Any HTTP status is an answer, not an error. Redirects are not followed.
class HttpClient {
 public:
  // kInvalidArgument: the ca_file.
  static Result<std::unique_ptr<HttpClient>> Create(Loop& loop, HttpClientOptions options = {});
  virtual ~HttpClient() = default;

  virtual Task<Result<HttpResponse>> Send(HttpCall call) = 0;
  // The same, once the answer's header is there.
  virtual Task<Result<std::unique_ptr<HttpStream>>> Open(HttpCall call) = 0;

  // Connections that are open, idle ones included.
  virtual size_t connections() const = 0;
};

}  // namespace forebay
