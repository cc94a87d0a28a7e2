// Interrupt: SIGINT, SIGTERM and SIGHUP as a callback on an ordinary thread.
#pragma once

#include <functional>
#include <thread>

namespace forebay::apps {

// While it lives, the first of these signals calls `fn` once on its own thread; a second one of its
// kind has the default effect (the process ends). A SIGHUP that is ignored (nohup) stays so. One at
// a time in a process; restores the old handlers.
class Interrupt {
 public:
  explicit Interrupt(std::function<void()> fn);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  std::function<void()> fn_;
  std::thread thread_;
  bool hangup_ignored_ = false;
};

}  // namespace forebay::apps
