#include "forebay/buffer/server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/service/completions.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/producers.h"
#include "forebay/buffer/service/server_impl.h"
#include "forebay/buffer/service/socket.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {
namespace {

// What a core's cache holds: the copy into the log reads it right after the kernel wrote it.
constexpr size_t kScratchBytes = size_t{256} << 10;

Status CheckOptions(const std::map<std::string, ServedTable>& tables,
                    const ServerOptions& options) {
  if (tables.empty() || tables.size() > 1000) {
    return InvalidArgument("a server needs 1 to 1000 tables");
  }
  for (const auto& [name, table] : tables) {
    FB_RETURN_IF_ERROR(CheckTableName(name));
    if (table.buffer == nullptr || table.group_size < 1 || table.record_bytes_max < 1 ||
        table.record_bytes_max > (int64_t{1} << 30)) {
      return InvalidArgument(fmt::format(
          "table '{}' needs a buffer, a group_size of 1 or more and a record_bytes_max of 1 byte "
          "to 1 GiB",
          name));
    }
  }
  if (options.listen.empty()) return InvalidArgument("a server needs an address to listen on");
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return InvalidArgument("a TLS certificate needs its key, and a key its certificate");
  }
  if (options.token.size() > kTokenBytesMax) {
    return InvalidArgument(fmt::format("a token has at most {} bytes", kTokenBytesMax));
  }
  if (options.connections_max < 1 || options.credit_bytes < 1 || options.append_bytes_max < 1 ||
      options.output_bytes_max < 1 || options.shared_bytes_max < 0 || options.requests_max < 1) {
    return InvalidArgument("a limit of the server is below 1");
  }
  return OkStatus();
}

}  // namespace

Status CheckTableName(std::string_view name) {
  if (ValidName(name) && name != "." && name != "..") return OkStatus();
  return InvalidArgument(fmt::format(
      "'{}' is no table name: 1 to 128 letters, digits, '.', '_' or '-' make one", name));
}

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kConnections:
      return "connections";
    case Refusal::kTls:
      return "tls";
    case Refusal::kToken:
      return "token";
    case Refusal::kVersion:
      return "version";
    case Refusal::kFenced:
      return "fenced";
    case Refusal::kFrame:
      return "frame";
    case Refusal::kOversized:
      return "oversized";
    case Refusal::kMessage:
      return "message";
    case Refusal::kCredit:
      return "credit";
    case Refusal::kSlowHello:
      return "slow_hello";
    case Refusal::kSlowFrame:
      return "slow_frame";
    case Refusal::kSlowReader:
      return "slow_reader";
    case Refusal::kIdle:
      return "idle";
  }
  return "unknown";
}

Result<std::unique_ptr<Server>> Server::Start(const std::map<std::string, ServedTable>& tables,
                                              const ServerOptions& options) {
  FB_RETURN_IF_ERROR(CheckOptions(tables, options));
  auto server = std::make_unique<ServerImpl>(tables, options);
  FB_RETURN_IF_ERROR(server->Open());
  return std::unique_ptr<Server>(std::move(server));
}

ServerImpl::ServerImpl(const std::map<std::string, ServedTable>& tables,
                       const ServerOptions& options)
    : options_(options),
      scratch_(kScratchBytes),
      completions_(new Completions([this] { WakeLoop(); })) {
  int64_t longest = kRequestBytesMax;
  for (const auto& [name, served] : tables) {
    longest = std::max(longest, served.record_bytes_max);
    tables_.push_back({.name = name, .served = served});
  }
  frame_bytes_max_ = static_cast<uint32_t>(longest);
}

ServerImpl::~ServerImpl() {
  Stop(Now());
  completions_.reset();  // callbacks that are still to come touch nothing of this
  RemoveSockets();       // of one that never ran
}

void ServerImpl::RemoveSockets() {
  for (const Listener& listener : listeners_) {
    if (listener.address.is_unix) unlink(listener.address.path.c_str());
  }
  listeners_.clear();
}

Status ServerImpl::Open() {
  if (!options_.certificate_file.empty()) {
    FB_ASSIGN_OR_RETURN(tls_, ServerTls(options_.certificate_file, options_.key_file));
  }
  for (const std::string& text : options_.listen) {
    FB_ASSIGN_OR_RETURN(Address address, ParseAddress(text));
    FB_ASSIGN_OR_RETURN(const bool loopback, IsLoopback(address));
    if (!loopback && (tls_ == nullptr || options_.token.empty())) {
      return InvalidArgument(fmt::format(
          "'{}' can be reached from other machines: that needs TLS (a certificate and its key) and "
          "a token; without, listen on a Unix socket or on 127.0.0.1",
          text));
    }
    FB_ASSIGN_OR_RETURN(Fd fd, Listen(address));
    addresses_.push_back(address.ToString());
    listeners_.push_back({.fd = std::move(fd), .address = std::move(address)});
  }
  FB_ASSIGN_OR_RETURN(producers_, Producers::Open(options_.folder, options_.next_trajectory_id));
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  event_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_.valid() || !event_.valid()) return ErrnoStatus("cannot make an epoll", errno);
  // Edge-triggered: it never needs to be read.
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = 0}};
  bool added = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) == 0;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    event = {.events = EPOLLIN, .data = {.u64 = i + 1}};
    added = added && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listeners_[i].fd.get(), &event) == 0;
  }
  if (!added) return ErrnoStatus("cannot watch a socket", errno);
  quick_ = std::make_unique<WorkerPool>(1);
  slow_ = std::make_unique<WorkerPool>(1);
  const MutexLock lock(stop_mutex_);
  thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

std::vector<std::string> ServerImpl::addresses() const { return addresses_; }

ServerStats ServerImpl::stats() const {
  const MutexLock lock(mutex_);
  return published_;
}

std::vector<std::string> ServerImpl::refusals() const {
  const MutexLock lock(mutex_);
  return {refusals_.begin(), refusals_.end()};
}

void ServerImpl::Wake() {
  Post([this] {
    for (Table& table : tables_) table.fresh = true;
  });
}

void ServerImpl::Stop(TimePoint deadline) {
  const MutexLock lock(stop_mutex_);
  if (!thread_.joinable()) return;
  stop_asked_ = true;
  Post([this, deadline] {
    stop_deadline_ = deadline;
    BeginStop();
  });
  thread_.join();
  // Their last jobs post to a loop that does not run any more: dropped.
  quick_.reset();
  slow_.reset();
  producers_.reset();  // another server may have its folder now
  RemoveSockets();
}

}  // namespace forebay::buffer
