// Task<T>: a lazy coroutine. It starts when awaited, on the awaiter's thread, and resumes its
// awaiter when done.
//
// Owned by its handle object: dropping an unfinished Task destroys its frame. Exceptions do not
// leave a Task (rooms use Status): one that escapes is a bug and aborts.
#pragma once

#include <coroutine>
#include <optional>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {

template <typename T>
class Task;

namespace task_internal {

struct FinalAwaiter {
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) const noexcept {
    auto next = self.promise().continuation;
    return next ? next : std::noop_coroutine();
  }
  void await_resume() const noexcept {}
};

struct PromiseBase {
  std::coroutine_handle<> continuation;
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  [[noreturn]] void unhandled_exception() const {
    CheckFailed(__FILE__, __LINE__, "no exception leaves a Task", "");
  }
};

template <typename T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object();
  void return_value(T v) { value.emplace(std::move(v)); }
  T Take() { return std::move(*value); }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object();
  void return_void() const {}
  void Take() const {}
};

}  // namespace task_internal

template <typename T>
class [[nodiscard]] Task {
 public:
  using promise_type = task_internal::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, {});
    }
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Await at most once.
  auto operator co_await() && {
    struct Awaiter {
      Handle handle;
      bool await_ready() const { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiter) const {
        handle.promise().continuation = awaiter;
        return handle;
      }
      T await_resume() const { return handle.promise().Take(); }
    };
    return Awaiter{handle_};
  }

 private:
  Handle handle_;
};

namespace task_internal {

template <typename T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}

}  // namespace task_internal
}  // namespace forebay
