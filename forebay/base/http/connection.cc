// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/base/http/connection.h"

#include <boost/asio/error.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/http/timer.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {
namespace {

using boost::system::error_code;

constexpr const char* kNoHandshake = "no TLS handshake before the deadline";
constexpr const char* kNotRead = "the peer did not read before the deadline";

// What is read ahead of its use: the next request of a client that does not wait for answers.
constexpr size_t kAheadMax = size_t{64} << 10;

Status ToStatus(const error_code& error) {
  if (error == boost::asio::error::eof) return Unavailable("the peer has closed the connection");
  if (error == boost::asio::error::operation_aborted) {
    return Unavailable("the connection was closed");
  }
  return Unavailable("the connection broke: " + error.message());
}

}  // namespace

void Connection::Close() {
  if (std::exchange(closed_, true)) return;
  if (read_status_.ok()) {
    read_status_ = Unavailable("the connection was closed");
  }
  transport_->Close();
  // Else the read that is under way tells.
  if (reading_) return;
  if (auto on_end = std::exchange(on_end_, nullptr)) on_end();
}

void Connection::Expire(const char* what) {
  if (closed_) return;
  timed_out_ = true;
  // A write that ended at the same moment tells of success: then the next read tells why nothing
  // comes any more.
  if (read_status_.ok()) read_status_ = DeadlineExceeded(what);
  Close();
}

// What is done is not late, also when the coroutine that waits for it has yet to be resumed.
std::function<void()> Connection::ExpiresUnless(OneShot<error_code> done, const char* what) {
  return [weak = weak_from_this(), done = std::move(done), what] {
    const auto connection = weak.lock();
    if (connection && !done.is_set()) connection->Expire(what);
  };
}

void Connection::StartRead() {
  if (reading_ || !read_status_.ok()) return;
  reading_ = true;
  transport_->Read(&input_,
                   [self = shared_from_this()](const error_code& error) { self->OnRead(error); });
}

void Connection::OnRead(const error_code& error) {
  reading_ = false;
  if (error && read_status_.ok()) read_status_ = ToStatus(error);
  if (reader_) {
    reader_->Set(true);
    reader_.reset();
  } else if (watching_ && read_status_.ok()) {
    if (input_.size() < kAheadMax) StartRead();
  }
  if (!read_status_.ok()) {
    if (auto on_end = std::exchange(on_end_, nullptr)) on_end();
  }
}

Task<Status> Connection::Read(TimePoint deadline) {
  if (!read_status_.ok()) co_return read_status_;
  const std::shared_ptr<Connection> self = shared_from_this();
  const OneShot<bool> woken(loop_);
  reader_ = woken;
  StartRead();
  const ScopedTimer timer(loop_, deadline, [woken] { woken.Set(false); });
  auto waiting = woken.Wait();
  const bool read = co_await waiting;
  if (!read && read_status_.ok()) {
    reader_.reset();
    timed_out_ = true;
    co_return DeadlineExceeded("nothing came before the deadline");
  }
  co_return read_status_;
}

Task<Status> Connection::Handshake(TimePoint deadline) {
  const std::shared_ptr<Connection> self = shared_from_this();
  const OneShot<error_code> done(loop_);
  transport_->Handshake([self, done](const error_code& error) { done.Set(error); });
  const ScopedTimer timer(loop_, deadline, ExpiresUnless(done, kNoHandshake));
  auto waiting = done.Wait();
  const error_code error = co_await waiting;
  if (timed_out_) co_return DeadlineExceeded(kNoHandshake);
  if (error) co_return Unavailable("the TLS handshake failed: " + error.message());
  co_return OkStatus();
}

Task<Status> Connection::Write(std::string bytes, TimePoint deadline) {
  const std::shared_ptr<Connection> self = shared_from_this();
  if (closed_) {
    co_return timed_out_ ? DeadlineExceeded(kNotRead) : Unavailable("the connection was closed");
  }
  const auto held = std::make_shared<std::string>(std::move(bytes));
  const OneShot<error_code> done(loop_);
  transport_->Write(*held, [self, held, done](const error_code& error) { done.Set(error); });
  const ScopedTimer timer(loop_, deadline, ExpiresUnless(done, kNotRead));
  auto waiting = done.Wait();
  const error_code error = co_await waiting;
  if (!error) co_return OkStatus();
  if (timed_out_) co_return DeadlineExceeded(kNotRead);
  co_return ToStatus(error);
}

void Connection::Watch(std::function<void()> on_end) {
  watching_ = on_end != nullptr;
  on_end_ = std::move(on_end);
  if (watching_ && input_.size() < kAheadMax) StartRead();
}

}  // namespace forebay::http
