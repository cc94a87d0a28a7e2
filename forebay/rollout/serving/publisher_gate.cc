#include "forebay/rollout/serving/publisher_gate.h"

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"

namespace forebay::rollout::serving {

Result<std::string> PublisherGate::Enter(const PublisherName& publisher, TimePoint now) {
  if (epoch_ > 0 && publisher != holder_) {
    const bool silent = now - heard_ >= silence_max_;
    if (publisher.name != holder_.name && !silent) {
      return AlreadyExists(fmt::format(
          "'{}' gives weights to this server, and was heard of {:.1f} s ago: one run has it at a "
          "time; end that one, or use another server",
          holder_.name, Seconds(now - heard_)));
    }
    // Clocks are set back, so a silent process is not obeyed because it says that it is younger.
    if (publisher.name == holder_.name && publisher.started_us < holder_.started_us && !silent) {
      return AlreadyExists(fmt::format(
          "a younger process of '{}' gives weights to this server, and was heard of {:.1f} s ago: "
          "this one has been replaced, unless that one has ended and the clock was set back "
          "since; then this one gets the server once {:.0f} s have passed",
          holder_.name, Seconds(now - heard_), Seconds(silence_max_)));
    }
  }
  if (epoch_ == 0 || publisher != holder_) ++epoch_;
  holder_ = publisher;
  heard_ = now;
  return fmt::format("{}-{}", instance_, epoch_);
}

Status PublisherGate::Check(std::string_view ticket, TimePoint now) {
  const std::string current = fmt::format("{}-{}", instance_, epoch_);
  if (epoch_ > 0 && ticket == current) {
    heard_ = now;
    return OkStatus();
  }
  const bool ours = ticket.starts_with(instance_ + "-");
  if (!ours) {
    return Unavailable("this server does not know the publisher: it was started again since");
  }
  return FailedPrecondition(
      fmt::format("'{}' gives weights to this server now: it was taken over", holder_.name));
}

}  // namespace forebay::rollout::serving
