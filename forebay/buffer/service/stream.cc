#include "forebay/buffer/service/stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "fmt/core.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"

namespace forebay::buffer {
namespace {

std::string LastError() {
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  if (code == 0) return "the connection broke";
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

Result<TlsContext> NewContext(const SSL_METHOD* method) {
  TlsContext context(SSL_CTX_new(method));
  if (context == nullptr) return Internal("OpenSSL: " + LastError());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  // Output is sent from where it lies, and a later attempt may begin elsewhere in it.
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION);
  return context;
}

// OpenSSL's own sockets write without MSG_NOSIGNAL: a peer that has gone would end the process.
int BioWrite(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = send(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), data,
                         static_cast<size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int BioRead(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = recv(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), data,
                         static_cast<size_t>(size), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

long BioControl(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {  // NOLINT
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

bool SetSocket(ssl_st* ssl, int fd) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "forebay socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, BioWrite);
    BIO_meth_set_read(made, BioRead);
    BIO_meth_set_ctrl(made, BioControl);
    return made;
  }();
  BIO* bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio == nullptr) return false;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));  // NOLINT
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  return true;
}

}  // namespace

void FreeTls::operator()(ssl_st* ssl) const { SSL_free(ssl); }
void FreeTls::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

Result<TlsContext> ServerTls(const std::string& certificate_file, const std::string& key_file) {
  FB_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_server_method()));
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_file.c_str()) != 1) {
    return InvalidArgument(
        fmt::format("'{}' is no readable PEM certificate: {}", certificate_file, LastError()));
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return InvalidArgument(
        fmt::format("'{}' is no readable PEM key of that certificate: {}", key_file, LastError()));
  }
  // Sessions are not resumed: connections are few and long.
  SSL_CTX_set_num_tickets(context.get(), 0);
  return context;
}

Result<TlsContext> ClientTls(const std::string& ca_file) {
  FB_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_client_method()));
  if (SSL_CTX_load_verify_file(context.get(), ca_file.c_str()) != 1) {
    return InvalidArgument(
        fmt::format("'{}' holds no readable PEM certificate: {}", ca_file, LastError()));
  }
  // A server's own certificate in the file is as good as its authority's.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.get()), X509_V_FLAG_PARTIAL_CHAIN);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

std::unique_ptr<Stream> Stream::TlsServer(Fd fd, ssl_ctx_st* context) {
  auto stream = std::make_unique<Stream>(std::move(fd));
  stream->ssl_.reset(SSL_new(context));
  if (stream->ssl_ == nullptr || !SetSocket(stream->ssl_.get(), stream->fd())) return nullptr;
  SSL_set_accept_state(stream->ssl_.get());
  return stream;
}

std::unique_ptr<Stream> Stream::TlsClient(Fd fd, ssl_ctx_st* context, const std::string& name) {
  auto stream = std::make_unique<Stream>(std::move(fd));
  stream->ssl_.reset(SSL_new(context));
  if (stream->ssl_ == nullptr || !SetSocket(stream->ssl_.get(), stream->fd())) return nullptr;
  SSL_set_connect_state(stream->ssl_.get());
  // An address is looked for among the certificate's addresses, a name among its names.
  X509_VERIFY_PARAM* const param = SSL_get0_param(stream->ssl_.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(param, name.c_str()) != 1) {
    SSL_set_tlsext_host_name(stream->ssl_.get(), name.c_str());
    X509_VERIFY_PARAM_set1_host(param, name.c_str(), name.size());
  }
  return stream;
}

Io Stream::Classify(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {.state = Io::State::kWantRead};
    case SSL_ERROR_WANT_WRITE:
      return {.state = Io::State::kWantWrite};
    case SSL_ERROR_ZERO_RETURN:
      return {.state = Io::State::kClosed};
    default:
      error_ = LastError();
      return {.state = Io::State::kError};
  }
}

Io Stream::Handshake() {
  if (ssl_ == nullptr) return {};
  const MutexLock lock(mutex_);
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) return {};
  Io io = Classify(result);
  if (io.state == Io::State::kError && SSL_get_verify_result(ssl_.get()) != X509_V_OK) {
    error_ = fmt::format("the server's certificate is not trusted: {}",
                         X509_verify_cert_error_string(SSL_get_verify_result(ssl_.get())));
  }
  return io;
}

Io Stream::Read(std::span<const iovec> areas) {
  if (ssl_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(areas.data());
    message.msg_iovlen = areas.size();
    while (true) {
      const ssize_t n = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
      if (n > 0) return {.bytes = static_cast<size_t>(n)};
      if (n == 0) return {.state = Io::State::kClosed};
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {.state = Io::State::kWantRead};
      return {.state = Io::State::kError};
    }
  }
  const MutexLock lock(mutex_);
  size_t total = 0;
  for (const iovec& area : areas) {
    size_t filled = 0;
    while (filled < area.iov_len) {
      size_t n = 0;
      ERR_clear_error();
      const int result = SSL_read_ex(ssl_.get(), static_cast<char*>(area.iov_base) + filled,
                                     area.iov_len - filled, &n);
      if (result != 1) {
        const Io io = Classify(result);
        return total > 0 ? Io{.bytes = total} : io;  // an error shows again
      }
      filled += n;
      total += n;
    }
  }
  return {.bytes = total};
}

Io Stream::Write(std::span<const iovec> pieces) {
  if (ssl_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    while (true) {
      const ssize_t n = sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n >= 0) return {.bytes = static_cast<size_t>(n)};
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {.state = Io::State::kWantWrite};
      return {.state = Io::State::kError};
    }
  }
  const MutexLock lock(mutex_);
  size_t total = 0;
  // A TLS record holds 16 KiB: small pieces that follow each other share one.
  std::array<char, 16384> record;
  size_t piece = 0;
  size_t offset = 0;
  while (piece < pieces.size()) {
    const char* data = static_cast<const char*>(pieces[piece].iov_base) + offset;
    size_t size = pieces[piece].iov_len - offset;
    if (size < record.size() && piece + 1 < pieces.size()) {
      size = 0;
      size_t from = offset;
      for (size_t p = piece; p < pieces.size() && size < record.size(); ++p, from = 0) {
        const size_t n = std::min(record.size() - size, pieces[p].iov_len - from);
        std::copy_n(static_cast<const char*>(pieces[p].iov_base) + from, n, record.data() + size);
        size += n;
      }
      data = record.data();
    }
    if (size == 0) {
      ++piece;
      offset = 0;
      continue;
    }
    size_t n = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(ssl_.get(), data, size, &n);
    if (result != 1) {
      const Io io = Classify(result);
      return total > 0 ? Io{.bytes = total} : io;
    }
    total += n;
    while (n > 0) {
      const size_t step = std::min(n, pieces[piece].iov_len - offset);
      offset += step;
      n -= step;
      if (offset == pieces[piece].iov_len) {
        ++piece;
        offset = 0;
      }
    }
  }
  return {.bytes = total};
}

}  // namespace forebay::buffer
