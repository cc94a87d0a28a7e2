#include "forebay/buffer/service/client_session.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/service/client_area.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/frame_reader.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/shared_area.h"
#include "forebay/buffer/service/socket.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {
namespace {

constexpr uint32_t kWelcomeBytesMax = 1 << 20;
constexpr uint16_t kSharingVersion = 2;
// For the replies of takes that the callers hold; only what is used takes memory.
constexpr uint64_t kReplyAreaBytes = uint64_t{32} << 20;

// False when the deadline has passed.
bool WaitFor(const Stream& stream, const Io& io, TimePoint deadline) {
  return io.state == Io::State::kWantWrite ? WaitWritable(stream.fd(), deadline)
                                           : WaitReadable(stream.fd(), deadline);
}

bool SameTables(const Welcome& a, const Welcome& b) {
  return std::ranges::equal(a.tables, b.tables, [](const WelcomeTable& x, const WelcomeTable& y) {
    return x.name == y.name && x.implied_dispatch == y.implied_dispatch &&
           x.group_size == y.group_size;
  });
}

std::string SmallFrame(FrameType type, std::string_view payload) {
  const FrameHeaderBytes header =
      EncodeFrameHeader({.length = static_cast<uint32_t>(payload.size()), .type = type});
  return std::string(header.data(), header.size()).append(payload);
}

// kOk, kClosed, kError, or kWantWrite when the deadline has passed.
Io WriteAll(Stream& stream, std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const iovec area{const_cast<char*>(bytes.data()), bytes.size()};
    const Io io = stream.Write({&area, 1});
    if (io.state == Io::State::kOk) {
      bytes.remove_prefix(io.bytes);
    } else if (io.state == Io::State::kClosed || io.state == Io::State::kError) {
      return io;
    } else if (!WaitFor(stream, io, deadline)) {
      return {.state = Io::State::kWantWrite};
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ClientSession>> ClientSession::Create(const ClientOptions& options) {
  auto session = std::make_unique<ClientSession>();
  session->options_ = options;
  FB_ASSIGN_OR_RETURN(session->address_, ParseAddress(options.address));
  if (!options.producer.empty() && !ValidName(options.producer)) {
    return InvalidArgument(
        fmt::format("'{}' is no producer name: 1 to 128 letters, digits, '.', '_' or '-' make one",
                    options.producer));
  }
  if (options.token.size() > kTokenBytesMax) {
    return InvalidArgument(fmt::format("a token has at most {} bytes", kTokenBytesMax));
  }
  if (options.connections < 1 || options.connections > 64) {
    return InvalidArgument("a client has 1 to 64 connections for appends");
  }
  if (options.unacknowledged_bytes_max < 1 || options.reply_bytes_max < 1 ||
      options.reply_bytes_max > (int64_t{4} << 30) - 1) {
    return InvalidArgument("a limit of the client is below 1 byte or above 4 GiB");
  }
  if (!options.ca_file.empty() && !session->address_.is_unix) {
    FB_ASSIGN_OR_RETURN(session->tls_, ClientTls(options.ca_file));
  }
  if (options.ca_file.empty() && !options.token.empty() && !session->address_.is_unix) {
    FB_ASSIGN_OR_RETURN(const bool loopback, IsLoopback(session->address_));
    if (!loopback) {
      return InvalidArgument(
          fmt::format("the token would travel to {} in the clear: give the server's certificate "
                      "(ca_file)",
                      options.address));
    }
  }
  return session;
}

Welcome ClientSession::welcome() const {
  const MutexLock lock(mutex_);
  return welcome_;
}

Result<Connected> ClientSession::Connect(Purpose purpose, TimePoint deadline) {
  const bool registers = purpose == Purpose::kAppends && !options_.producer.empty();
  const MutexLock one(registering_);
  FB_ASSIGN_OR_RETURN(Fd fd, ConnectSocket(address_, deadline));
  auto stream =
      tls_ == nullptr
          ? std::make_unique<Stream>(std::move(fd))
          : Stream::TlsClient(std::move(fd), tls_.get(),
                              options_.server_name.empty() ? address_.host : options_.server_name);
  if (stream == nullptr) return Internal("OpenSSL has no room for a connection");
  FB_RETURN_IF_ERROR(Handshake(*stream, deadline));
  Hello hello{
      .version_min = kProtocolVersionMin, .version_max = kProtocolVersion, .token = options_.token};
  if (registers) {
    hello.producer = options_.producer;
    const MutexLock lock(mutex_);
    hello.secret = welcome_.secret;
  }
  FB_ASSIGN_OR_RETURN(Welcome welcome, SayHello(*stream, hello, deadline));
  Connected connected;
  if (address_.is_unix && welcome.version >= kSharingVersion) {
    const AreaSizes wanted = purpose == Purpose::kAppends
                                 ? AreaSizes{.append_bytes = welcome.credit_bytes}
                                 : AreaSizes{.reply_bytes = kReplyAreaBytes};
    FB_ASSIGN_OR_RETURN(connected.area, Share(*stream, wanted, deadline));
  }
  connected.stream = std::move(stream);
  const MutexLock lock(mutex_);
  FB_RETURN_IF_ERROR(Accept(std::move(welcome), registers));
  return connected;
}

Status ClientSession::Accept(Welcome welcome, bool registers) {
  if (welcome.version < kProtocolVersionMin || welcome.version > kProtocolVersion) {
    return Unimplemented(
        fmt::format("the server chose version {} of the buffer protocol, this "
                    "client speaks {} to {}",
                    welcome.version, kProtocolVersionMin, kProtocolVersion));
  }
  if (connected_ && !SameTables(welcome, welcome_)) {
    return FailedPrecondition("the server was started again with other tables");
  }
  if (!registers) {
    welcome.producer_number = welcome_.producer_number;
    welcome.epoch = welcome_.epoch;
    welcome.secret = welcome_.secret;
  }
  welcome_ = std::move(welcome);
  connected_ = true;
  return OkStatus();
}

Status ClientSession::Handshake(Stream& stream, TimePoint deadline) const {
  while (true) {
    const Io io = stream.Handshake();
    if (io.state == Io::State::kOk) return OkStatus();
    if (io.state == Io::State::kClosed || io.state == Io::State::kError) {
      return Unavailable(
          fmt::format("no TLS connection to {}: {}", options_.address, stream.HandshakeError()));
    }
    if (!WaitFor(stream, io, deadline)) {
      return DeadlineExceeded(fmt::format("no TLS handshake with {} in time", options_.address));
    }
  }
}

Result<Welcome> ClientSession::SayHello(Stream& stream, const Hello& hello,
                                        TimePoint deadline) const {
  const auto lost = [&] {
    return Unavailable(
        fmt::format("{} closed the connection before its welcome: is it a Forebay "
                    "buffer, and does it expect TLS?",
                    options_.address));
  };
  const auto late = [&] {
    return DeadlineExceeded(fmt::format("no welcome from {} in time", options_.address));
  };
  const Io sent = WriteAll(stream, SmallFrame(FrameType::kHello, EncodeHello(hello)), deadline);
  if (sent.state != Io::State::kOk) return sent.state == Io::State::kWantWrite ? late() : lost();
  // Exactly one frame comes: nothing behind it is lost with the reader.
  FrameReader reader(kWelcomeBytesMax);
  std::vector<char> scratch(kFrameHeaderBytes);
  std::optional<Result<Welcome>> answer;
  while (!answer.has_value()) {
    iovec areas[2];
    // Not into the scratch area when a frame is under way: that is for the next one.
    const int n = std::min(1, reader.Prepare(scratch, areas));
    const Io io = stream.Read({areas, static_cast<size_t>(n)});
    if (io.state == Io::State::kClosed || io.state == Io::State::kError) return lost();
    if (io.state != Io::State::kOk) {
      if (!WaitFor(stream, io, deadline)) return late();
      continue;
    }
    FB_RETURN_IF_ERROR(reader.Commit(
        scratch, io.bytes, [&](const FrameHeader& frame, std::string_view content) -> Status {
          if (frame.type == FrameType::kWelcome) {
            answer = ParseWelcome(content);
          } else if (frame.type == FrameType::kGoodbye && frame.argument != 0 &&
                     frame.argument <= static_cast<uint32_t>(StatusCode::kInternal)) {
            answer = Status(static_cast<StatusCode>(frame.argument), std::string(content))
                         .WithContext(options_.address);
          } else {
            return DataLoss("the server answered a hello with something else");
          }
          return OkStatus();
        }));
  }
  return *std::move(answer);
}

Result<std::shared_ptr<ClientArea>> ClientSession::Share(Stream& stream, const AreaSizes& wanted,
                                                         TimePoint deadline) const {
  const auto lost = [&] {
    return Unavailable(fmt::format("{} did not say whether it shares memory", options_.address));
  };
  if (WriteAll(stream, SmallFrame(FrameType::kShare, EncodeAreaSizes(wanted)), deadline).state !=
      Io::State::kOk) {
    return lost();
  }
  while (true) {
    // Not a byte more than this answer: the descriptor comes with it.
    std::string bytes(kFrameHeaderBytes, '\0');
    size_t have = 0;
    Fd fd;
    std::optional<FrameHeader> header;
    while (have < bytes.size()) {
      if (!WaitReadable(stream.fd(), deadline)) return lost();
      const ptrdiff_t n = ReceiveWithFd(stream.fd(), bytes.data() + have, bytes.size() - have, &fd);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) return lost();
      have += static_cast<size_t>(n);
      if (have < kFrameHeaderBytes || header.has_value()) continue;
      FB_ASSIGN_OR_RETURN(header, ParseFrameHeader(bytes, kWelcomeBytesMax));
      bytes.resize(kFrameHeaderBytes + header->length);
    }
    const std::string_view content = std::string_view(bytes).substr(kFrameHeaderBytes);
    if (header->type == FrameType::kPing) continue;  // what follows answers it
    if (header->type != FrameType::kShared) {
      return Unavailable(fmt::format("{} did not share memory: {}", options_.address, content));
    }
    FB_ASSIGN_OR_RETURN(const AreaSizes sizes, ParseAreaSizes(content));
    if (!fd.valid()) return std::shared_ptr<ClientArea>();
    FB_ASSIGN_OR_RETURN(std::unique_ptr<SharedArea> area, SharedArea::Map(std::move(fd), sizes));
    return std::make_shared<ClientArea>(std::move(area));
  }
}

}  // namespace forebay::buffer
