// forebay replay.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "apps/commands.h"
#include "apps/replay.h"
#include "forebay/base/status.h"

namespace forebay::apps {

Status ReplayRun(const ReplayCommand& command) {
  if (command.list) {
    FB_ASSIGN_OR_RETURN(const ReplayableSteps steps, ListReplayable(command.run));
    std::fputs(FormatReplayable(steps).c_str(), stdout);
    return OkStatus();
  }
  ReplayOptions options{.run = command.run, .step = command.step, .sets = command.sets};
  if (!command.json) {
    options.say = [](const std::string& sentence) {
      std::fprintf(stderr, "%s\n", sentence.c_str());
    };
  }
  FB_ASSIGN_OR_RETURN(const Replay replay, ReplayStep(options));
  if (command.json) {
    std::puts(ReplayJson(replay).c_str());
  } else {
    std::fputs(FormatReplay(replay).c_str(), stdout);
  }
  const ReplayRow* const first = replay.first_difference();
  if (first == nullptr) return OkStatus();
  return Internal(fmt::format(
      "step {} was not repeated bit for bit: the first difference is '{}' of step {}: recorded {}, "
      "replayed {}",
      replay.step, first->what, first->step, first->recorded, first->replayed));
}

}  // namespace forebay::apps
