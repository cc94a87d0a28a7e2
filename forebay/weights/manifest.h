// Manifest: what a snapshot is made of, by content, so that only what a receiver lacks is sent.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {

// XXH3-128 of a tensor's bytes. No defence against somebody who wants two tensors to collide: who
// may send weights decides what they are anyway.
struct ContentId {
  uint64_t high = 0, low = 0;
  friend auto operator<=>(const ContentId&, const ContentId&) = default;
};
ContentId ContentOf(std::span<const std::byte> bytes);

struct ManifestTensor {
  std::string name;
  xla::Shape shape;  // of floats
  ContentId content;
};

// Ascending by name, each once.
struct Manifest {
  int64_t policy_version = 0;
  std::vector<ManifestTensor> tensors;
};

// Reads every byte of the snapshot once.
Manifest MakeManifest(const Snapshot& snapshot);

// JSON: {"policy_version", "tensors": [[name, dtype, dims, content]], "root"}. The root is a hash
// of all the rest, so that a manifest is whole or refused.
std::string FormatManifest(const Manifest& manifest);
// Nothing in `text` is trusted, and no memory beyond a few times its size is taken. kDataLoss: not
// such a manifest, what and where.
Result<Manifest> ParseManifest(std::string_view text);

}  // namespace forebay::weights
