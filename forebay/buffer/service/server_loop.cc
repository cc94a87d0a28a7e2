// The server's I/O thread: accepts, reads, writes, and ends what takes too long.
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/server_impl.h"
#include "forebay/buffer/service/socket.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCheckEvery{100};
constexpr milliseconds kStoppingCheckEvery{5};
// Takes that wait look that often for appends that came another way.
constexpr milliseconds kTakeEvery{5};
// A goodbye has that long to reach its client.
constexpr milliseconds kEndingMs{1000};
constexpr size_t kRefusalsKept = 64;
constexpr int kReadsAtOnce = 16;
// A client that does not read what it is answered is not listened to either. Half of it, and it is.
constexpr size_t kAnswerBytesMax = size_t{4} << 20;

std::string PeerName(int fd, bool is_unix) {
  if (is_unix) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
      return fmt::format("process {}", peer.pid);
    }
    return "a process of this machine";
  }
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "somebody";
  if (address.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&address);
    inet_ntop(AF_INET, &in->sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(in->sin_port));
  }
  const auto* in = reinterpret_cast<const sockaddr_in6*>(&address);
  inet_ntop(AF_INET6, &in->sin6_addr, text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), ntohs(in->sin6_port));
}

}  // namespace

void ServerImpl::WakeLoop() {
  if (!sleeping_.exchange(false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_.get(), &one, sizeof(one));
}

void ServerImpl::Post(std::function<void()> fn) {
  {
    const MutexLock lock(mutex_);
    posts_.push_back(std::move(fn));
  }
  WakeLoop();
}

Connection* ServerImpl::Find(uint64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

int ServerImpl::WaitMs() const {
  if (!again_.empty() || !touched_.empty()) return 0;
  TimePoint until = next_check_;
  if (!takes_.empty()) until = std::min(until, next_take_);
  return static_cast<int>(
      std::max<int64_t>(0, std::chrono::ceil<milliseconds>(until - Now()).count()));
}

void ServerImpl::Run() {
  std::array<epoll_event, 128> events;
  std::vector<std::function<void()>> posts;
  next_check_ = next_take_ = Now();
  while (!(stopping_ && connections_.empty())) {
    sleeping_ = true;
    int wait_ms = WaitMs();
    // What came before `sleeping_` was set did not wake us.
    completions_->Drain(done_);
    if (!done_.empty()) wait_ms = 0;
    {
      const MutexLock lock(mutex_);
      if (!posts_.empty()) wait_ms = 0;
    }
    const int n = epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms);
    sleeping_ = false;
    now_ = Now();
    // Those that do not append first, and their answers: a take does not wait for appends that take
    // longer.
    const std::span all = std::span(events).first(static_cast<size_t>(std::max(n, 0)));
    const auto appending = std::ranges::partition(all, [this](const epoll_event& event) {
      const Connection* const c = Find(event.data.u64);
      return c == nullptr || !c->appends;
    });
    OnEvents(all.first(all.size() - appending.size()));
    FlushTouched();
    OnEvents(appending);
    for (const uint64_t id : std::exchange(again_, {})) {
      if (Connection* c = Find(id)) Read(*c);
    }
    {
      const MutexLock lock(mutex_);
      posts.swap(posts_);
    }
    for (const auto& post : posts) post();
    posts.clear();
    FinishAppends();
    if (!takes_.empty()) {
      const bool all = now_ >= next_take_;
      if (all) next_take_ = now_ + kTakeEvery;
      TryTakes(all);
    }
    FlushTouched();
    if (now_ >= next_check_) {
      next_check_ = now_ + (stopping_ ? kStoppingCheckEvery : kCheckEvery);
      CheckDeadlines(now_);
    }
    DeleteClosed();
    counts_.waiting_takes = static_cast<int64_t>(takes_.size());
    const MutexLock lock(mutex_);
    published_ = counts_;
  }
}

void ServerImpl::Accept(Listener& listener) {
  if (stopping_) return;
  for (int i = 0; i < 64; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    Fd fd(accept4(listener.fd.get(), reinterpret_cast<sockaddr*>(&from), &size,
                  SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // Nothing helps but a connection that ends: look again later, not at once.
        for (Listener& each : listeners_) {
          epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, each.fd.get(), nullptr);
        }
        accept_again_ = now_ + kCheckEvery;
      }
      return;
    }
    const bool is_unix = listener.address.is_unix;
    TuneSocket(fd.get(), is_unix);
    ++counts_.connections_total;
    auto c = std::make_unique<Connection>(static_cast<uint32_t>(kHelloBytesMax));
    c->id = next_connection_++;
    c->is_unix = is_unix;
    c->peer = PeerName(fd.get(), is_unix);
    c->opened = c->last_in = c->last_ping = now_;
    const int raw = fd.get();
    if (!is_unix && tls_ != nullptr) {
      c->stream = Stream::TlsServer(std::move(fd), tls_.get());
      if (c->stream == nullptr) continue;
    } else {
      c->stream = std::make_unique<Stream>(std::move(fd));
      c->phase = Connection::Phase::kHello;
    }
    epoll_event event{.events = EPOLLIN, .data = {.u64 = c->id}};
    c->watched = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, raw, &event) != 0) continue;
    Connection& accepted = *(connections_[c->id] = std::move(c));
    ++counts_.connections;
    if (counts_.connections > options_.connections_max) {
      Refuse(accepted, Refusal::kConnections,
             ResourceExhausted(fmt::format("the server has its {} connections (connections_max)",
                                           options_.connections_max)));
    }
  }
}

void ServerImpl::OnEvents(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    const uint64_t id = event.data.u64;
    if (id == 0) continue;
    if (id <= listeners_.size()) {
      Accept(listeners_[id - 1]);
    } else if (Connection* c = Find(id)) {
      OnEvent(*c, event.events);
    }
  }
}

void ServerImpl::OnEvent(Connection& c, uint32_t events) {
  if (c.phase == Connection::Phase::kHandshake) {
    Handshake(c);
    return;
  }
  if ((events & EPOLLOUT) != 0) Touch(c);
  if ((events & (EPOLLHUP | EPOLLERR)) != 0 && (c.paused || c.stalled)) {
    Close(c);  // it has gone, and would be told of again and again
    return;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(c);
}

void ServerImpl::Handshake(Connection& c) {
  if (c.stream == nullptr) return;
  const Io io = c.stream->Handshake();
  switch (io.state) {
    case Io::State::kOk:
      c.phase = Connection::Phase::kHello;
      c.want_write = false;
      Watch(c);
      Read(c);
      return;
    case Io::State::kWantRead:
    case Io::State::kWantWrite:
      c.want_write = io.state == Io::State::kWantWrite;
      Watch(c);
      return;
    case Io::State::kClosed:
    case Io::State::kError:
      Note(Refusal::kTls, c.peer, "no TLS handshake: " + c.stream->HandshakeError());
      Close(c);
      return;
  }
}

void ServerImpl::Read(Connection& c) {
  if (c.stream == nullptr || c.phase == Connection::Phase::kHandshake) return;
  if (reading_paused_ && c.phase == Connection::Phase::kOpen) {
    c.paused = true;
    Watch(c);
    return;
  }
  for (int round = 0; round < kReadsAtOnce; ++round) {
    if (c.phase == Connection::Phase::kOpen && c.out.copied_bytes() > kAnswerBytesMax) {
      c.stalled = true;
      Touch(c);
      return;
    }
    std::array<iovec, 2> areas;
    const int n = c.phase == Connection::Phase::kEnding
                      ? (areas[0] = {scratch_.data(), scratch_.size()}, 1)
                      : c.in.Prepare(scratch_, areas.data());
    size_t room = 0;
    for (int i = 0; i < n; ++i) room += areas[i].iov_len;
    const Io io = c.stream->Read({areas.data(), static_cast<size_t>(n)});
    if (io.state == Io::State::kWantRead || io.state == Io::State::kWantWrite) return;
    if (io.state != Io::State::kOk) {
      Close(c);
      return;
    }
    counts_.bytes_in += static_cast<int64_t>(io.bytes);
    if (c.phase == Connection::Phase::kEnding) continue;  // it learns why; what it says is ignored
    c.last_in = now_;
    const Status status =
        c.in.Commit(scratch_, io.bytes, [&](const FrameHeader& header, std::string_view payload) {
          return OnFrame(c, header, payload);
        });
    if (!status.ok() && c.phase != Connection::Phase::kEnding) {
      Refuse(
          c,
          status.code() == StatusCode::kResourceExhausted ? Refusal::kOversized : Refusal::kFrame,
          status);
    }
    if (c.stream == nullptr || c.phase == Connection::Phase::kEnding) return;
    if (!c.in.partial()) {
      c.frame_since = {};
    } else if (c.frame_since == TimePoint{} || io.bytes > areas[0].iov_len) {
      c.frame_since = now_;
    }
    // A plain socket shows again; what TLS holds does not.
    if (!c.stream->tls() && io.bytes < room) return;
    if (reading_paused_) break;
  }
  if (c.stream != nullptr) again_.push_back(c.id);
}

void ServerImpl::Watch(Connection& c) {
  if (c.stream == nullptr) return;
  const uint32_t events =
      (c.paused || c.stalled ? 0U : uint32_t{EPOLLIN}) | (c.want_write ? uint32_t{EPOLLOUT} : 0U);
  if (events == c.watched) return;
  epoll_event event{.events = events, .data = {.u64 = c.id}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c.stream->fd(), &event);
  c.watched = events;
}

void ServerImpl::Touch(Connection& c) {
  if (c.touched) return;
  c.touched = true;
  touched_.push_back(c.id);
}

void ServerImpl::FlushTouched() {
  for (const uint64_t id : std::exchange(touched_, {})) {
    if (Connection* c = Find(id)) Flush(*c);
  }
}

void ServerImpl::Flush(Connection& c) {
  c.touched = false;
  if (c.stream == nullptr) return;
  if (!c.acks.empty()) {
    c.out.PutFrame({.type = FrameType::kAppended}, {reinterpret_cast<const char*>(c.acks.data()),
                                                    c.acks.size() * sizeof(uint64_t)});
    c.acks.clear();
  }
  if (c.phase == Connection::Phase::kHandshake) return;  // of TLS: there is no way to say anything
  const Io io = c.out.Send(*c.stream);
  counts_.bytes_out += static_cast<int64_t>(io.bytes);
  while (!c.unsent.empty() && c.unsent.front().sent_at <= c.out.sent_total()) c.unsent.pop_front();
  if (io.state == Io::State::kClosed || io.state == Io::State::kError) {
    Close(c);
    return;
  }
  c.want_write = io.state == Io::State::kWantWrite;
  if (c.stalled && c.out.copied_bytes() <= kAnswerBytesMax / 2) {
    c.stalled = false;
    c.last_in = now_;
    if (c.frame_since != TimePoint{}) c.frame_since = now_;
    again_.push_back(c.id);
  }
  if (c.out.empty()) {
    c.write_since = {};
    if (c.phase == Connection::Phase::kEnding) shutdown(c.stream->fd(), SHUT_WR);
  } else if (io.bytes > 0 || c.write_since == TimePoint{}) {
    c.write_since = now_;
  }
  Watch(c);
}

void ServerImpl::CheckDeadlines(TimePoint now) {
  if (accept_again_ != TimePoint{} && now >= accept_again_ && !stopping_) {
    accept_again_ = {};
    for (size_t i = 0; i < listeners_.size(); ++i) {
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i + 1}};
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listeners_[i].fd.get(), &event);
    }
  }
  const auto expired = [&](TimePoint since, Duration after) {
    return since != TimePoint{} && now - since > after;
  };
  for (auto& [id, owned] : connections_) {
    Connection& c = *owned;
    if (c.stream == nullptr) continue;
    using Phase = Connection::Phase;
    if (c.phase == Phase::kEnding) {
      if (expired(c.ending_since, kEndingMs)) Close(c);
    } else if (c.phase != Phase::kOpen) {
      if (expired(c.opened, options_.hello_deadline)) {
        Refuse(c, Refusal::kSlowHello, DeadlineExceeded("no hello in time"));
      }
    } else if (expired(c.write_since, options_.write_deadline)) {
      Note(Refusal::kSlowReader, c.peer, "it did not read what it asked for");
      Close(c);
    } else if (c.paused || c.stalled) {
      continue;  // the silence is ours
    } else if (expired(c.frame_since, options_.frame_deadline)) {
      Refuse(c, Refusal::kSlowFrame, DeadlineExceeded("a frame that did not end in time"));
    } else if (expired(c.last_in, options_.idle_deadline)) {
      Refuse(c, Refusal::kIdle, DeadlineExceeded("no answer to the pings"));
    } else if (expired(std::max(c.last_in, c.last_ping), options_.ping_after)) {
      c.last_ping = now;
      c.out.PutFrame({.type = FrameType::kPing}, {});
      Touch(c);
    }
  }
  if (stopping_ && (Drained() || now >= stop_deadline_)) {
    for (auto& [id, c] : connections_) {
      if (c->phase != Connection::Phase::kEnding) {
        Goodbye(*c, Unavailable("the server has stopped"));
      } else if (now >= stop_deadline_ && c->out.empty()) {
        Close(*c);
      }
    }
  }
  FlushTouched();
}

bool ServerImpl::Drained() const { return jobs_ == 0 && free_slots_.size() == slots_.size(); }

void ServerImpl::BeginStop() {
  if (stopping_) return;
  stopping_ = true;
  for (Listener& listener : listeners_) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.fd.get(), nullptr);
  }
  FailTakes(-1, Unavailable("the server is stopping"));
  next_check_ = now_;
}

void ServerImpl::CheckPause() {
  if (!reading_paused_) {
    reading_paused_ = counts_.append_bytes > options_.append_bytes_max;
    return;
  }
  if (counts_.append_bytes > options_.append_bytes_max / 4 * 3) return;
  reading_paused_ = false;
  for (auto& [id, c] : connections_) {
    if (!c->paused) continue;
    c->paused = false;
    c->last_in = now_;
    if (c->frame_since != TimePoint{}) c->frame_since = now_;
    Watch(*c);
    again_.push_back(id);
  }
}

void ServerImpl::Note(Refusal refusal, const std::string& peer, std::string_view why) {
  ++counts_.refused[static_cast<size_t>(refusal)];
  const MutexLock lock(mutex_);
  if (refusals_.size() == kRefusalsKept) refusals_.pop_front();
  refusals_.push_back(fmt::format("{}: {}: {}", peer, RefusalName(refusal), why));
}

void ServerImpl::Refuse(Connection& c, Refusal refusal, const Status& why) {
  Note(refusal, c.peer, why.message());
  Goodbye(c, why);
}

void ServerImpl::Goodbye(Connection& c, const Status& why) {
  if (c.stream == nullptr) return;
  if (c.phase == Connection::Phase::kHandshake) {
    Close(c);
    return;
  }
  if (!c.acks.empty()) Flush(c);
  if (c.stream == nullptr) return;
  c.phase = Connection::Phase::kEnding;
  c.ending_since = now_;
  c.paused = c.stalled = false;
  c.out.PutFrame({.type = FrameType::kGoodbye, .argument = static_cast<uint32_t>(why.code())},
                 why.message());
  Touch(c);
}

void ServerImpl::Close(Connection& c) {
  if (c.stream == nullptr) return;
  // What it never got is for others, at once.
  for (const Connection::Unsent& unsent : c.unsent) {
    const Status given = unsent.buffer->GiveBack(unsent.take_id);
    (void)given;  // expired: the same
  }
  c.unsent.clear();
  if (c.tail_table >= 0) --tables_[static_cast<size_t>(c.tail_table)].tails;
  std::erase_if(takes_, [&](const WaitingTake& take) { return take.connection == c.id; });
  if (c.sharing != nullptr) {
    shared_bytes_ -= static_cast<int64_t>(c.sharing->area->sizes().total());
    c.sharing.reset();
  }
  c.stream.reset();
  c.out = OutQueue();
  --counts_.connections;
  closed_.push_back(c.id);
}

void ServerImpl::DeleteClosed() {
  for (const uint64_t id : closed_) connections_.erase(id);
  closed_.clear();
}

}  // namespace forebay::buffer
