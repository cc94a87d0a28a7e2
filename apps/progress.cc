#include "apps/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "forebay/base/mutex.h"

namespace forebay::apps {

std::string FormatStep(const StepView& v) {
  const int64_t eta = std::llround(v.eta_seconds);
  return fmt::format(
      "step {}/{}  reward {:.3f}  learner {:.0f} % busy  buffer {}  staleness {:.1f}  {:.0f} tok/s "
      "trained, {:.0f} sampled  ETA "
      "{}:{:02}",
      v.step, v.steps, v.reward, 100 * v.utilization, v.pending, v.staleness, v.tokens_per_s,
      v.sampled_per_s, eta / 60, eta % 60);
}

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(::isatty(STDOUT_FILENO) == 1) {}

void Progress::Say(const std::string& sentence) {
  if (quiet_) return;
  const MutexLock lock(mutex_);
  EndLine();
  std::printf("%s\n", sentence.c_str());
  std::fflush(stdout);
}

void Progress::Step(const StepView& view) {
  if (quiet_) return;
  const MutexLock lock(mutex_);
  if (terminal_) {
    std::printf("\r%s\033[K", FormatStep(view).c_str());
    open_ = true;
  } else {
    std::printf("%s\n", FormatStep(view).c_str());
  }
  std::fflush(stdout);
}

void Progress::End() {
  const MutexLock lock(mutex_);
  EndLine();
}

void Progress::EndLine() {
  if (open_) std::printf("\n");
  open_ = false;
}

}  // namespace forebay::apps
