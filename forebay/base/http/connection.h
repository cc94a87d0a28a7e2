// Connection: a transport for coroutines: reads and writes with deadlines, and reading ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/http/transport.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {

// On one loop. A coroutine that waits in it may be destroyed; whoever does that closes it.
// kUnavailable: the peer has gone, or Close was called. kDeadlineExceeded: of a Read, which may be
// repeated; a Write or Handshake that is late closes the connection.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& loop, std::unique_ptr<Transport> transport)
      : loop_(loop), transport_(std::move(transport)) {}
  ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Task<Status> Handshake(TimePoint deadline);
  // Waits until input() has more bytes than now.
  Task<Status> Read(TimePoint deadline);
  std::string& input() { return input_; }
  // Writes come one at a time.
  Task<Status> Write(std::string bytes, TimePoint deadline);

  // Reads ahead (a little), so that the peer's end is noticed while nobody reads; `on_end` runs
  // once then. Null stops telling; a read that is under way goes on and serves the next Read.
  void Watch(std::function<void()> on_end);

  // The peer has ended its half, the connection broke, or Close was called.
  bool ended() const { return !read_status_.ok(); }
  bool timed_out() const { return timed_out_; }  // a deadline has passed
  bool closed() const { return closed_; }
  bool HasInput() { return !input_.empty() || transport_->HasInput(); }
  void EndWriting() { transport_->EndWriting(); }
  void Close();

 private:
  void StartRead();
  void OnRead(const boost::system::error_code& error);
  void Expire(const char* what);
  std::function<void()> ExpiresUnless(OneShot<boost::system::error_code> done, const char* what);

  Loop& loop_;
  const std::unique_ptr<Transport> transport_;
  std::string input_;
  bool reading_ = false;
  std::optional<OneShot<bool>> reader_;
  std::function<void()> on_end_;
  bool watching_ = false;
  Status read_status_;
  bool timed_out_ = false;
  bool closed_ = false;
};

}  // namespace forebay::http
