// OneShot<T>: one value, set on the loop, awaited by one coroutine of the loop.
#pragma once

#include <coroutine>
#include <memory>
#include <optional>
#include <utility>

#include "forebay/base/loop.h"

namespace forebay {

// Unlike Completion (base/loop.h) it is for the loop's thread only, and a coroutine that waits may
// be destroyed. Copies share the state. The first Set wins.
template <typename T>
class OneShot {
 public:
  explicit OneShot(Loop& loop) : state_(std::make_shared<State>(State{&loop})) {}

  // Resumes the waiter from the loop, not from inside this call.
  void Set(T value) const {
    if (state_->value) return;
    state_->value.emplace(std::move(value));
    if (!state_->waiter) return;
    state_->loop->Post([state = state_] {
      if (auto waiter = std::exchange(state->waiter, {})) waiter.resume();
    });
  }
  bool is_set() const { return state_->value.has_value(); }

  auto Wait() const { return Awaiter{state_}; }

 private:
  struct State {
    Loop* loop;
    std::optional<T> value;
    std::coroutine_handle<> waiter;
  };
  struct Awaiter {
    std::shared_ptr<State> state;
    explicit Awaiter(std::shared_ptr<State> s) : state(std::move(s)) {}
    Awaiter(const Awaiter&) = delete;
    Awaiter& operator=(const Awaiter&) = delete;
    ~Awaiter() { state->waiter = {}; }  // lives in the coroutine's frame: the frame is gone now
    bool await_ready() const { return state->value.has_value(); }
    void await_suspend(std::coroutine_handle<> self) const { state->waiter = self; }
    T await_resume() const { return std::move(*state->value); }
  };
  std::shared_ptr<State> state_;
};

}  // namespace forebay
