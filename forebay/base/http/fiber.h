// Fiber: a coroutine that belongs to an object and goes with it.
#pragma once

#include <coroutine>
#include <utility>

#include "forebay/base/check.h"

namespace forebay::http {

// Starts at once, on the caller's thread; its destruction destroys the frame, wherever it waits.
// Must not be destroyed from inside itself.
class Fiber {
 public:
  struct promise_type {
    Fiber get_return_object() {
      return Fiber(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const {}
    [[noreturn]] void unhandled_exception() const {
      CheckFailed(__FILE__, __LINE__, "no exception leaves a Fiber", "");
    }
  };

  Fiber() = default;
  Fiber(Fiber&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Fiber& operator=(Fiber&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, {});
    }
    return *this;
  }
  ~Fiber() {
    if (handle_) handle_.destroy();
  }

 private:
  explicit Fiber(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace forebay::http
