// Interrupt: SIGINT and SIGTERM as a callback on an ordinary thread.
#pragma once

#include <functional>
#include <thread>

namespace forebay::apps {

// While it lives, the first SIGINT or SIGTERM calls `fn` once on its own thread; a second one has
// the default effect (the process ends). One at a time in a process; restores the old handlers.
class Interrupt {
 public:
  explicit Interrupt(std::function<void()> fn);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  std::function<void()> fn_;
  std::thread thread_;
};

}  // namespace forebay::apps
