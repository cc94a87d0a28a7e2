// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/base/http/pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connect.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {

ConnectionPool::Lease::~Lease() {
  if (pool_) pool_->GiveBack(origin_, std::move(connection), keep);
}

// One coroutine's wait for a place; if it is dropped after it was woken, the next one is.
struct ConnectionPool::Waiting {
  std::shared_ptr<ConnectionPool> pool;
  std::string origin;
  std::shared_ptr<Waiter> waiter;
  uint64_t timer = 0;
  bool taken = false;
  ~Waiting() {
    if (timer != 0) pool->loop_.Cancel(timer);
    waiter->gone = true;
    if (waiter->woken.is_set() && !taken) pool->WakeOne(pool->origins_[origin]);
  }
};

Task<Result<std::unique_ptr<ConnectionPool::Lease>>> ConnectionPool::Take(HttpUrl url, bool fresh,
                                                                          TimePoint deadline) {
  const std::shared_ptr<ConnectionPool> self = shared_from_this();
  const std::string name = url.Origin();
  while (origins_[name].leased >= options_.connections_per_origin_max) {
    Waiting waiting{.pool = self, .origin = name, .waiter = std::make_shared<Waiter>(loop_)};
    origins_[name].waiters.push_back(waiting.waiter);
    if (deadline != TimePoint::max()) {
      waiting.timer =
          loop_.RunAt(deadline, [waiter = waiting.waiter] { waiter->woken.Set(false); });
    }
    auto wait = waiting.waiter->woken.Wait();
    waiting.taken = co_await wait;
    if (!waiting.taken) {
      waiting.taken = true;
      co_return DeadlineExceeded("all connections to it were in use until the deadline");
    }
  }
  Origin& origin = origins_[name];
  ++origin.leased;
  auto lease = std::make_unique<Lease>(self, name);
  while (!fresh && !origin.idle.empty()) {
    std::shared_ptr<Connection> connection = std::move(origin.idle.back().connection);
    origin.idle.pop_back();
    if (connection->HasInput()) {  // its end, or bytes that nobody asked for
      connection->Close();
      continue;
    }
    lease->connection = std::move(connection);
    lease->reused = true;
    co_return lease;
  }
  Task<Result<std::shared_ptr<Connection>>> connecting =
      Connect(loop_, std::move(url), tls_.get(), deadline);
  Result<std::shared_ptr<Connection>> connection = co_await std::move(connecting);
  if (!connection.ok()) co_return connection.status();
  lease->connection = std::move(*connection);
  co_return lease;
}

void ConnectionPool::GiveBack(const std::string& name, std::shared_ptr<Connection> connection,
                              bool keep) {
  Origin& origin = origins_[name];
  --origin.leased;
  if (connection && keep && !shut_down_ && !connection->ended()) {
    origin.idle.push_back({.connection = std::move(connection), .since = loop_.Now()});
    ScheduleSweep();
  } else if (connection) {
    connection->Close();
  }
  WakeOne(origin);
}

void ConnectionPool::WakeOne(Origin& origin) {
  while (!origin.waiters.empty() && origin.leased < options_.connections_per_origin_max) {
    const std::shared_ptr<Waiter> waiter = std::move(origin.waiters.front());
    origin.waiters.pop_front();
    if (waiter->gone || waiter->woken.is_set()) continue;
    waiter->woken.Set(true);
    return;
  }
}

void ConnectionPool::ScheduleSweep() {
  if (std::exchange(sweeping_, true)) return;
  loop_.RunAt(loop_.Now() + options_.idle_max, [weak = weak_from_this()] {
    if (const auto pool = weak.lock()) pool->Sweep();
  });
}

void ConnectionPool::Sweep() {
  sweeping_ = false;
  const TimePoint before = loop_.Now() - options_.idle_max;
  bool left = false;
  for (auto it = origins_.begin(); it != origins_.end();) {
    Origin& origin = it->second;
    std::erase_if(origin.idle, [&](const Idle& idle) {
      if (idle.since > before) return false;
      idle.connection->Close();
      return true;
    });
    left = left || !origin.idle.empty();
    const bool unused = origin.idle.empty() && origin.leased == 0 && origin.waiters.empty();
    it = unused ? origins_.erase(it) : std::next(it);
  }
  if (left) ScheduleSweep();
}

void ConnectionPool::Shutdown() {
  shut_down_ = true;
  for (auto& [name, origin] : origins_) {
    for (const Idle& idle : origin.idle) idle.connection->Close();
    origin.idle.clear();
  }
}

size_t ConnectionPool::connections() const {
  size_t total = 0;
  for (const auto& [name, origin] : origins_) total += origin.leased + origin.idle.size();
  return total;
}

}  // namespace forebay::http
