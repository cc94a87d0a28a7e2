// WebSocket: a client's connection of messages (RFC 6455) from a Loop.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {

struct WebSocketOptions {
  HttpHeaders headers;                         // of the handshake, for instance Authorization
  size_t message_bytes_max = size_t{4} << 20;  // of a message that comes
  size_t messages_max = 64;                    // that have come and were not received
  std::string ca_file;                         // as of HttpClientOptions
};

// On one loop on real time, which must outlive it. It always reads: pings are answered while nobody
// receives. Any coroutine that waits in it may be dropped. The destructor breaks the connection
// off.
//
// Once it has failed it stays so: kUnavailable (the peer has ended it, with its code and reason, or
// is gone), kDataLoss (not WebSocket), kResourceExhausted (too long, or too many messages).
class WebSocket {
 public:
  // "ws://host:port/path", "wss://...", or the http, https and unix forms of ParseUrl.
  // kInvalidArgument (the URL, the ca_file), kUnavailable (cannot connect, or the server refuses,
  // with its status), kDeadlineExceeded, kDataLoss.
  static Task<Result<std::unique_ptr<WebSocket>>> Connect(Loop& loop, std::string url,
                                                          WebSocketOptions options,
                                                          TimePoint deadline);
  virtual ~WebSocket() = default;

  // Sends a text message. kDeadlineExceeded: it may have been sent.
  virtual Task<Status> Send(std::string text, TimePoint deadline) = 0;
  // The next message, text or binary; one coroutine at a time. kDeadlineExceeded changes nothing:
  // the message may be received later. Messages that came before a failure come first.
  virtual Task<Result<std::string>> Receive(TimePoint deadline) = 0;
  // Says goodbye and waits for the peer's; then it is closed, at the deadline in any case.
  virtual Task<void> Close(TimePoint deadline) = 0;
  virtual bool broken() const = 0;
};

}  // namespace forebay
