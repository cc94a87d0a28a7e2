// Loop: one thread that runs callbacks, timers and coroutines. Actors and their environments live
// on one.
//
// Nothing that runs on a Loop may block. Post, Spawn, Stop and lag are thread-safe; everything else
// is for code that already runs on the loop, or before Run.
#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/lag.h"
#include "forebay/base/task.h"

namespace boost::asio {
class io_context;  // NOLINT(readability-identifier-naming)
}

namespace forebay {

class Loop {
 public:
  virtual ~Loop() = default;

  virtual TimePoint Now() const = 0;
  // Runs `fn` on the loop's thread, after what was posted before. Dropped if the loop never runs
  // again.
  virtual void Post(std::function<void()> fn) = 0;
  // Runs `fn` on the loop at `when`. Returns an id for Cancel.
  virtual uint64_t RunAt(TimePoint when, std::function<void()> fn) = 0;
  virtual void Cancel(uint64_t timer) = 0;

  // Calls `fn` (once) when fd can be read / written without blocking. One watch per fd and
  // direction.
  virtual void WhenReadable(int fd, std::function<void()> fn) = 0;
  virtual void WhenWritable(int fd, std::function<void()> fn) = 0;
  // Forgets the watches of fd (their callbacks are dropped); call before close(fd).
  virtual void Forget(int fd) = 0;

  // Runs until Stop. The caller's thread becomes the loop's.
  virtual void Run() = 0;
  // Makes Run return soon; thread-safe.
  virtual void Stop() = 0;

  // How late timers ran: what other callbacks took from whoever waited. A virtual loop is never
  // late. Thread-safe.
  virtual LagHistogram& lag() = 0;

  // What it runs on, for sockets of Boost.Asio (base/http); null for a virtual loop.
  virtual boost::asio::io_context* asio() { return nullptr; }

  // Starts a coroutine that nobody awaits; it begins on the loop. `done` runs on the loop when it
  // has ended.
  void Spawn(Task<void> task, std::function<void()> done = nullptr);

  // co_await loop.SleepUntil(t). A coroutine that sleeps must not be destroyed before it wakes.
  auto SleepUntil(TimePoint when) {
    struct Awaiter {
      Loop* loop;
      TimePoint when;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> self) const {
        loop->RunAt(when, [self] { self.resume(); });
      }
      void await_resume() const {}
    };
    return Awaiter{this, when};
  }
};

// The loop on real time, over Boost.Asio.
std::unique_ptr<Loop> MakeLoop();

// A loop on virtual time: Run jumps from timer to timer and returns when nothing is left (or at
// Stop). For simulations and tests; it watches no fds.
std::unique_ptr<Loop> MakeVirtualLoop();

// One value that arrives from anywhere, awaited by one coroutine on a loop.
//   Completion<int> c(loop);  other thread: c.Set(7);  coroutine: int v = co_await c.Wait();
// Copies share the state, so the setter may outlive the waiter. The first Set wins. A coroutine
// that waits must not be destroyed before the Set.
template <typename T>
class Completion {
 public:
  explicit Completion(Loop& loop) : state_(std::make_shared<State>(loop)) {}

  // Thread-safe.
  void Set(T value) const {
    state_->loop.Post([state = state_, v = std::make_shared<T>(std::move(value))] {
      if (state->value) return;
      state->value.emplace(std::move(*v));
      if (auto waiter = std::exchange(state->waiter, {})) waiter.resume();
    });
  }

  auto Wait() const {
    struct Awaiter {
      std::shared_ptr<typename Completion::State> state;
      bool await_ready() const { return state->value.has_value(); }
      void await_suspend(std::coroutine_handle<> self) const { state->waiter = self; }
      T await_resume() const { return std::move(*state->value); }
    };
    return Awaiter{state_};
  }

 private:
  struct State {
    explicit State(Loop& l) : loop(l) {}
    Loop& loop;
    std::optional<T> value;
    std::coroutine_handle<> waiter;
  };
  std::shared_ptr<State> state_;
};

}  // namespace forebay
