#include "forebay/base/loop.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/lag.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

namespace asio = boost::asio;

// A coroutine that destroys itself when it ends: the root of a spawned Task.
struct Detached {
  struct promise_type {
    Detached get_return_object() const { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const {}
    [[noreturn]] void unhandled_exception() const {
      CheckFailed(__FILE__, __LINE__, "no exception leaves a spawned Task", "");
    }
  };
};

Detached RunDetached(Task<void> task, std::function<void()> done) {
  co_await std::move(task);
  if (done) done();
}

class AsioLoop final : public Loop {
 public:
  AsioLoop() : work_(asio::make_work_guard(io_)) {}

  TimePoint Now() const override { return forebay::Now(); }
  void Post(std::function<void()> fn) override { asio::post(io_, std::move(fn)); }

  uint64_t RunAt(TimePoint when, std::function<void()> fn) override {
    const uint64_t id = ++last_timer_;
    auto timer = std::make_unique<asio::steady_timer>(io_, when);
    timer->async_wait([this, id, when, fn = std::move(fn)](const boost::system::error_code& error) {
      if (error) return;                   // cancelled
      if (timers_.erase(id) == 0) return;  // Cancel may come after the timer has fired
      lag_.Record(Now() - when);
      fn();
    });
    timers_.emplace(id, std::move(timer));
    return id;
  }
  void Cancel(uint64_t timer) override { timers_.erase(timer); }

  void WhenReadable(int fd, std::function<void()> fn) override {
    Wait(fd, asio::posix::descriptor_base::wait_read, std::move(fn));
  }
  void WhenWritable(int fd, std::function<void()> fn) override {
    Wait(fd, asio::posix::descriptor_base::wait_write, std::move(fn));
  }
  void Forget(int fd) override {
    auto it = descriptors_.find(fd);
    if (it == descriptors_.end()) return;
    it->second->release();  // the fd stays the caller's
    descriptors_.erase(it);
  }

  void Run() override {
    io_.restart();
    io_.run();
  }
  void Stop() override { io_.stop(); }
  LagHistogram& lag() override { return lag_; }
  boost::asio::io_context* asio() override { return &io_; }

  ~AsioLoop() override {
    for (auto& [fd, descriptor] : descriptors_) descriptor->release();
  }

 private:
  void Wait(int fd, asio::posix::descriptor_base::wait_type type, std::function<void()> fn) {
    auto& descriptor = descriptors_[fd];
    if (!descriptor) descriptor = std::make_unique<asio::posix::stream_descriptor>(io_, fd);
    descriptor->async_wait(type, [fn = std::move(fn)](const boost::system::error_code& error) {
      if (!error) fn();
    });
  }

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  uint64_t last_timer_ = 0;
  LagHistogram lag_;
  std::unordered_map<uint64_t, std::unique_ptr<asio::steady_timer>> timers_;
  std::unordered_map<int, std::unique_ptr<asio::posix::stream_descriptor>> descriptors_;
};

class VirtualLoop final : public Loop {
 public:
  TimePoint Now() const override { return now_; }
  void Post(std::function<void()> fn) override { ready_.push_back(std::move(fn)); }
  uint64_t RunAt(TimePoint when, std::function<void()> fn) override {
    const uint64_t id = ++last_timer_;
    timers_.emplace(std::make_pair(when, id), std::move(fn));
    due_[id] = when;
    return id;
  }
  void Cancel(uint64_t timer) override {
    auto it = due_.find(timer);
    if (it == due_.end()) return;
    timers_.erase({it->second, timer});
    due_.erase(it);
  }
  void WhenReadable(int, std::function<void()>) override {
    FB_CHECK(false, "virtual loops watch no fd");
  }
  void WhenWritable(int, std::function<void()>) override {
    FB_CHECK(false, "virtual loops watch no fd");
  }
  void Forget(int) override {}

  void Run() override {
    stopped_ = false;
    while (!stopped_) {
      if (!ready_.empty()) {
        auto fn = std::move(ready_.front());
        ready_.pop_front();
        fn();
      } else if (!timers_.empty()) {
        auto it = timers_.begin();
        now_ = std::max(now_, it->first.first);
        auto fn = std::move(it->second);
        due_.erase(it->first.second);
        timers_.erase(it);
        fn();
      } else {
        return;
      }
    }
  }
  void Stop() override { stopped_ = true; }
  LagHistogram& lag() override { return lag_; }

 private:
  LagHistogram lag_;
  TimePoint now_{};
  bool stopped_ = false;
  uint64_t last_timer_ = 0;
  std::deque<std::function<void()>> ready_;
  std::map<std::pair<TimePoint, uint64_t>, std::function<void()>> timers_;
  std::unordered_map<uint64_t, TimePoint> due_;
};

}  // namespace

void Loop::Spawn(Task<void> task, std::function<void()> done) {
  // std::function needs a copyable capture; the Task moves out of the shared holder once.
  auto holder = std::make_shared<Task<void>>(std::move(task));
  Post([holder, done = std::move(done)]() mutable {
    RunDetached(std::move(*holder), std::move(done));
  });
}

std::unique_ptr<Loop> MakeLoop() { return std::make_unique<AsioLoop>(); }
std::unique_ptr<Loop> MakeVirtualLoop() { return std::make_unique<VirtualLoop>(); }

}  // namespace forebay
