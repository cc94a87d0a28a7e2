// The manifest of a checkpoint: parsing and printing of manifest.json. Private to the learner.
#pragma once

#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/learner/checkpoint.h"

namespace forebay::learner {

struct Manifest {
  CheckpointData data;  // without tensors
  std::string model_digest, optimizer_digest;
  std::string adapters_digest;  // "": no adapters
  // The base is beside the steps' folders, not in each of them (checkpoint.h).
  bool shared_base = false;
};

// Deterministic text. kInvalidArgument when app_state is not JSON.
Result<std::string> FormatManifest(const Manifest& manifest);

// kDataLoss for anything that FormatManifest does not write: the missing or mistyped key is named.
Result<Manifest> ParseManifest(std::string_view text);

}  // namespace forebay::learner
