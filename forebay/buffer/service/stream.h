// Stream: the bytes of one connection, plain or through TLS 1.3, never blocking.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"

struct ssl_st;
struct ssl_ctx_st;

namespace forebay::buffer {

struct FreeTls {
  void operator()(ssl_st* ssl) const;
  void operator()(ssl_ctx_st* context) const;
};
using TlsContext = std::unique_ptr<ssl_ctx_st, FreeTls>;

// kInvalidArgument: files that are missing, do not parse or do not belong together.
Result<TlsContext> ServerTls(const std::string& certificate_file, const std::string& key_file);
Result<TlsContext> ClientTls(const std::string& ca_file);

struct Io {
  enum class State : uint8_t {
    kOk,         // `bytes` were moved
    kWantRead,   // try again when the socket is readable
    kWantWrite,  // ... writable
    kClosed,     // the peer has ended it
    kError,
  };
  State state = State::kOk;
  size_t bytes = 0;
};

// Reading and writing may happen on two threads at once.
class Stream {
 public:
  Stream() = default;  // of nothing
  explicit Stream(Fd fd) : fd_(std::move(fd)) {}
  // The client's names the server that it wants to talk to.
  static std::unique_ptr<Stream> TlsServer(Fd fd, ssl_ctx_st* context);
  static std::unique_ptr<Stream> TlsClient(Fd fd, ssl_ctx_st* context, const std::string& name);

  int fd() const { return fd_.get(); }
  bool tls() const { return ssl_ != nullptr; }

  // kOk when the connection is ready for data; plain ones are at once.
  Io Handshake();
  // Why the handshake failed, in words.
  std::string HandshakeError() const { return error_; }

  Io Read(std::span<const iovec> areas);
  Io Write(std::span<const iovec> pieces);

 private:
  Io Classify(int result);

  Fd fd_;
  std::unique_ptr<ssl_st, FreeTls> ssl_;
  Mutex mutex_;  // of ssl_, which is not safe for a reader beside a writer
  std::string error_;
};

}  // namespace forebay::buffer
