// ConnectionPool: the client's connections, kept between requests and bounded for each origin.
#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/http/transport.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {

// On one loop; leases keep it alive.
class ConnectionPool : public std::enable_shared_from_this<ConnectionPool> {
 public:
  // A place among an origin's connections, and the connection. Gives both back at its end.
  class Lease {
   public:
    Lease(std::shared_ptr<ConnectionPool> pool, std::string origin)
        : pool_(std::move(pool)), origin_(std::move(origin)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    Connection& operator*() const { return *connection; }
    Connection* operator->() const { return connection.get(); }

    std::shared_ptr<Connection> connection;
    bool reused = false;
    bool keep = false;  // the exchange has ended well: others may use the connection

   private:
    std::shared_ptr<ConnectionPool> pool_;
    std::string origin_;
  };

  ConnectionPool(Loop& loop, const HttpClientOptions& options, TlsContext tls)
      : loop_(loop), options_(options), tls_(std::move(tls)) {}

  // A kept connection unless `fresh`, else a new one; waits for a place. kUnavailable,
  // kDeadlineExceeded.
  Task<Result<std::unique_ptr<Lease>>> Take(HttpUrl url, bool fresh, TimePoint deadline);
  // Closes what is idle; what is leased is closed when it comes back.
  void Shutdown();
  size_t connections() const;

 private:
  struct Idle {
    std::shared_ptr<Connection> connection;
    TimePoint since;
  };
  struct Waiter {
    explicit Waiter(Loop& loop) : woken(loop) {}
    OneShot<bool> woken;
    bool gone = false;  // nobody waits any more
  };
  struct Origin {
    size_t leased = 0;
    std::vector<Idle> idle;
    std::deque<std::shared_ptr<Waiter>> waiters;
  };
  struct Waiting;

  void GiveBack(const std::string& origin, std::shared_ptr<Connection> connection, bool keep);
  void WakeOne(Origin& origin);
  void Sweep();
  void ScheduleSweep();

  Loop& loop_;
  const HttpClientOptions options_;
  const TlsContext tls_;
  std::map<std::string, Origin> origins_;
  bool sweeping_ = false;
  bool shut_down_ = false;
};

}  // namespace forebay::http
