#include "forebay/base/http/transport.h"

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/ssl/stream_base.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/status.h"

namespace forebay::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Of a connection that is given up: nothing is to be done about a failure.
void Ignore(const error_code&) {}

constexpr size_t kReadBytes = size_t{32} << 10;

std::string LastError() {
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  if (code == 0) return "no reason given";
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

Result<TlsContext> NewContext(const SSL_METHOD* method, int version_min) {
  TlsContext context(SSL_CTX_new(method));
  if (context == nullptr) return Internal("OpenSSL: " + LastError());
  SSL_CTX_set_min_proto_version(context.get(), version_min);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION);
  return context;
}

class Plain final : public Transport {
 public:
  explicit Plain(StreamSocket socket) : socket_(std::move(socket)) {
    error_code ignored;
    Ignore(socket_.non_blocking(true, ignored));
  }

  void Handshake(Done done) override {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done({}); });
  }

  // Waits before it takes memory: most connections wait most of the time.
  void Read(std::string* into, Done done) override {
    socket_.async_wait(asio::socket_base::wait_read,
                       [this, into, done = std::move(done)](error_code error) {
                         if (error) return done(error);
                         std::array<char, kReadBytes> bytes;  // NOLINT: filled by the read
                         const size_t n = socket_.read_some(asio::buffer(bytes), error);
                         if (error == asio::error::would_block) return Read(into, done);
                         into->append(bytes.data(), n);
                         done(error);
                       });
  }
  void Write(const std::string& bytes, Done done) override {
    asio::async_write(socket_, asio::buffer(bytes),
                      [done = std::move(done)](const error_code& error, size_t) { done(error); });
  }
  void EndWriting() override {
    error_code ignored;
    Ignore(socket_.shutdown(asio::socket_base::shutdown_send, ignored));
  }
  void Close() override {
    error_code ignored;
    Ignore(socket_.close(ignored));
  }
  bool HasInput() override {
    pollfd fd{.fd = socket_.native_handle(), .events = POLLIN, .revents = 0};
    return poll(&fd, 1, 0) != 0;
  }

 private:
  StreamSocket socket_;
};

class Tls final : public Transport {
 public:
  Tls(StreamSocket socket, SSL_CTX* context, const std::string& host)
      : context_(Share(context)), stream_(std::move(socket), context_), client_(!host.empty()) {
    if (!client_) return;
    // An address is looked for among the certificate's addresses, a name among its names.
    X509_VERIFY_PARAM* const param = SSL_get0_param(stream_.native_handle());
    if (X509_VERIFY_PARAM_set1_ip_asc(param, host.c_str()) != 1) {
      SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
      X509_VERIFY_PARAM_set1_host(param, host.c_str(), host.size());
    }
  }

  void Handshake(Done done) override {
    stream_.async_handshake(
        client_ ? asio::ssl::stream_base::client : asio::ssl::stream_base::server, std::move(done));
  }
  void Read(std::string* into, Done done) override {
    if (!input_) input_ = std::make_unique<std::array<char, kReadBytes>>();
    stream_.async_read_some(asio::buffer(*input_), [this, into, done = std::move(done)](
                                                       const error_code& error, size_t n) {
      into->append(input_->data(), n);
      // Most peers close without TLS's own farewell; the messages say where they end.
      done(error == asio::ssl::error::stream_truncated ? asio::error::eof : error);
    });
  }
  void Write(const std::string& bytes, Done done) override {
    asio::async_write(stream_, asio::buffer(bytes),
                      [done = std::move(done)](const error_code& error, size_t) { done(error); });
  }
  void EndWriting() override {
    error_code ignored;
    Ignore(stream_.next_layer().shutdown(asio::socket_base::shutdown_send, ignored));
  }
  void Close() override {
    error_code ignored;
    Ignore(stream_.next_layer().close(ignored));
  }
  bool HasInput() override {
    pollfd fd{.fd = stream_.next_layer().native_handle(), .events = POLLIN, .revents = 0};
    return SSL_pending(stream_.native_handle()) > 0 || poll(&fd, 1, 0) != 0;
  }

 private:
  // Asio's context frees what it is given.
  static SSL_CTX* Share(SSL_CTX* context) {
    SSL_CTX_up_ref(context);
    return context;
  }

  asio::ssl::context context_;
  asio::ssl::stream<StreamSocket> stream_;
  std::unique_ptr<std::array<char, kReadBytes>> input_;
  const bool client_;
};

}  // namespace

void FreeTlsContext::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

Result<TlsContext> ServerTls(const std::string& certificate_file, const std::string& key_file) {
  FB_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_server_method(), TLS1_3_VERSION));
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_file.c_str()) != 1) {
    return InvalidArgument(
        fmt::format("'{}' is no readable PEM certificate: {}", certificate_file, LastError()));
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return InvalidArgument(
        fmt::format("'{}' is no readable PEM key of that certificate: {}", key_file, LastError()));
  }
  return context;
}

Result<TlsContext> ClientTls(const std::string& ca_file) {
  FB_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_client_method(), TLS1_2_VERSION));
  if (ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(context.get());
  } else if (SSL_CTX_load_verify_file(context.get(), ca_file.c_str()) != 1) {
    return InvalidArgument(
        fmt::format("'{}' holds no readable PEM certificate: {}", ca_file, LastError()));
  }
  // A server's own certificate in the file is as good as its authority's.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.get()), X509_V_FLAG_PARTIAL_CHAIN);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

std::unique_ptr<Transport> PlainTransport(StreamSocket socket) {
  return std::make_unique<Plain>(std::move(socket));
}

std::unique_ptr<Transport> TlsTransport(StreamSocket socket, SSL_CTX* context,
                                        const std::string& host) {
  return std::make_unique<Tls>(std::move(socket), context, host);
}

}  // namespace forebay::http
