// Fingerprint: the bits of one optimizer step as text, to be compared with those of its repetition
// (forebay replay).
//
// The fields stand in the order in which the data flows, so that the first one that differs is the
// nearest to the cause: batch, trajectories, content, what was packed, the loss and what else the
// device gave, the updated weights. Numbers of the device are IEEE-754 bits ("0x" and 16 digits),
// so that NaNs and signed zeros count too; times are left out.
//
// Digests are XXH3-128: against accidents, not against an adversary. That of the weights is taken
// from the host copy that is published anyway: measured below 2 % of a step of a 135 M-parameter
// model (docs/replay.md), so no reduction on the device stands in for it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "forebay/learner/step_metrics.h"

namespace forebay::learner {

struct FingerprintField {
  std::string_view name;  // "loss"; static
  std::string bits;
  friend bool operator==(const FingerprintField&, const FingerprintField&) = default;
};

// Equal steps give equal fields. Pure.
std::vector<FingerprintField> Fingerprint(const StepMetrics& metrics);

// "0.25" for the bits of a number, anything else as it is: for people.
std::string ReadableBits(std::string_view bits);

// XXH3-128, as 32 hexadecimal digits.
std::string BytesDigest(std::string_view bytes);

}  // namespace forebay::learner
