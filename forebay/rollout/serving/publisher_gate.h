// PublisherGate: which of several publishers may give a served engine its weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"

namespace forebay::rollout::serving {

struct PublisherName {
  std::string name;        // of the run: a process that goes on with it has the same
  int64_t started_us = 0;  // wall clock: of two living processes of one run the younger publishes
  friend bool operator==(const PublisherName&, const PublisherName&) = default;
};

// One holds the gate at a time, with a ticket that each of its calls shows. It is taken over at
// once by a younger process of the same run, and by anybody else, an older process too, only after
// `silence_max` without a call. From then on the old ticket is refused, however late it is shown:
// two publishers never mix.
// Not thread-safe.
class PublisherGate {
 public:
  // `instance`: of this process, so that a ticket of the one before is known for what it is.
  PublisherGate(std::string instance, Duration silence_max)
      : instance_(std::move(instance)), silence_max_(silence_max) {}

  // A ticket; the holder gets the same one again. kAlreadyExists: somebody else holds it, who, or a
  // younger process of this run does.
  Result<std::string> Enter(const PublisherName& publisher, TimePoint now);
  // Notes a sign of life. kUnavailable: a ticket of another process of this server, which was
  // started again since; kFailedPrecondition: of a publisher from whom it was taken over.
  Status Check(std::string_view ticket, TimePoint now);

  // Of the holder; grows whenever it changes. 0: nobody has come.
  uint64_t epoch() const { return epoch_; }
  const std::string& holder() const { return holder_.name; }

 private:
  const std::string instance_;
  const Duration silence_max_;
  uint64_t epoch_ = 0;
  PublisherName holder_;
  TimePoint heard_;
};

}  // namespace forebay::rollout::serving
