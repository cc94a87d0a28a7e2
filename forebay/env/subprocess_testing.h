// For tests of environment pools: coroutines to their end, and child processes in Python.
#pragma once

#include <coroutine>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess.h"

namespace forebay::env {

// A coroutine that can be destroyed while it waits, as an actor pool that is torn down does.
struct Droppable {
  struct promise_type {
    Droppable get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const {}
    void unhandled_exception() const { std::abort(); }
  };
  std::coroutine_handle<promise_type> handle;
};

// Runs the loop until the task has ended.
void RunToEnd(Loop& loop, Task<void> task);

// Numbers of our open descriptors, and of our children (zombies included).
int OpenDescriptors();
int Children();

// A folder that is removed with what is in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  const std::string& path() const { return path_; }
  // Writes a file into it and returns its path.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

// Options to run an environment written with the SDK: `body` defines class Env(Environment).
SubprocessOptions SdkOptions(const TempFolder& folder, const std::string& body);
// Options to run a script that speaks (or breaks) the protocol by itself; before `body` it has read
// the hello, and has say(dict) and hear() -> dict.
SubprocessOptions RawOptions(const TempFolder& folder, const std::string& body);

}  // namespace forebay::env
