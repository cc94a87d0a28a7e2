#include "forebay/rollout/engine/scheduler.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "forebay/base/check.h"

namespace forebay::rollout {

Action NextAction(const Load& load) {
  if (load.next_chunk == 0) return load.decoding > 0 ? Action::kDecode : Action::kIdle;
  if (load.decoding == 0) return Action::kPrefill;
  return load.prefilled_since_decode + load.next_chunk <= load.prefill_max ? Action::kPrefill
                                                                           : Action::kDecode;
}

int64_t ChunkSize(std::span<const int64_t> sizes, int64_t remaining) {
  FB_CHECK(!sizes.empty() && remaining > 0, "a chunk holds a token");
  const auto it = std::lower_bound(sizes.begin(), sizes.end(), remaining);
  return it == sizes.end() ? sizes.back() : *it;
}

int64_t ChunkStart(int64_t start, int64_t chunk, int64_t context) {
  FB_CHECK(start >= 0 && chunk <= context, "a chunk fits into the context");
  return std::min(start, context - chunk);
}

int64_t ContextBucket(std::span<const int64_t> buckets, int64_t entries) {
  const auto it = std::lower_bound(buckets.begin(), buckets.end(), entries);
  FB_CHECK(it != buckets.end(), "no bucket holds the context");
  return *it;
}

}  // namespace forebay::rollout
