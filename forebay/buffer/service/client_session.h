// ClientSession: what all connections of a client share: whom to talk to, and as whom.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/service/client_area.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/socket.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {

// What a connection is for. Those for appends say who the producer is, if there is one.
enum class Purpose : uint8_t { kAppends, kReads };

struct Connected {
  std::unique_ptr<Stream> stream;
  std::shared_ptr<ClientArea> area;  // null: everything goes through the socket
};

// Thread-safe.
class ClientSession {
 public:
  static Result<std::unique_ptr<ClientSession>> Create(const ClientOptions& options);

  const ClientOptions& options() const { return options_; }

  // A connection that was welcomed. The first for appends registers the producer, later ones go on
  // as it. What the server said with its goodbye is returned as it was: kFailedPrecondition
  // and kUnimplemented will not change by trying again.
  Result<Connected> Connect(Purpose purpose, TimePoint deadline);

  // Of the last connection.
  Welcome welcome() const;

 private:
  Status Handshake(Stream& stream, TimePoint deadline) const;
  Result<Welcome> SayHello(Stream& stream, const Hello& hello, TimePoint deadline) const;
  // Null: the server shares none.
  Result<std::shared_ptr<ClientArea>> Share(Stream& stream, const AreaSizes& wanted,
                                            TimePoint deadline) const;
  Status Accept(Welcome welcome, bool registers) FB_REQUIRES(mutex_);

  ClientOptions options_;
  Address address_;
  TlsContext tls_;
  Mutex registering_;  // one connection after the other
  mutable Mutex mutex_;
  bool connected_ FB_GUARDED_BY(mutex_) = false;
  Welcome welcome_ FB_GUARDED_BY(mutex_);  // producer's fields: of the one that registered
};

}  // namespace forebay::buffer
