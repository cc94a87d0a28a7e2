// Transport: the bytes of one connected socket, plain or through TLS, over Boost.Asio.
//
// Includes Asio: for the sources of base/http only.
#pragma once

#include <openssl/types.h>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "forebay/base/status.h"

namespace forebay::http {

struct FreeTlsContext {
  void operator()(SSL_CTX* context) const;
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTlsContext>;

// TLS 1.3 with that certificate. kInvalidArgument: files that are missing or do not belong
// together.
Result<TlsContext> ServerTls(const std::string& certificate_file, const std::string& key_file);
// TLS 1.2 or newer; the peer's certificate must be signed by one of `ca_file` ("": of the
// system's).
Result<TlsContext> ClientTls(const std::string& ca_file);

using StreamSocket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol>;

// One read and one write at a time. Callbacks run on the loop, never inside the call; after Close
// they get operation_aborted. Destroy it only when none is pending (Connection sees to that).
class Transport {
 public:
  using Done = std::function<void(const boost::system::error_code&)>;
  virtual ~Transport() = default;

  virtual void Handshake(Done done) = 0;
  // Appends what there is, at least one byte; the end of the stream is error eof.
  virtual void Read(std::string* into, Done done) = 0;
  // All of it; `bytes` must live until `done`.
  virtual void Write(const std::string& bytes, Done done) = 0;
  // Our half ends; reading goes on.
  virtual void EndWriting() = 0;
  virtual void Close() = 0;
  // Whether a connection that should be quiet has bytes or its end waiting to be read.
  virtual bool HasInput() = 0;
};

std::unique_ptr<Transport> PlainTransport(StreamSocket socket);
// `host`: whose certificate the client wants to see; "" for a server. The context must outlive it.
std::unique_ptr<Transport> TlsTransport(StreamSocket socket, SSL_CTX* context,
                                        const std::string& host);

}  // namespace forebay::http
