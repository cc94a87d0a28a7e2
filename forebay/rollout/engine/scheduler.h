// The engine's choices of what to run next: pure functions, so that they are tested as tables.
#pragma once

#include <cstdint>
#include <span>

namespace forebay::rollout {

struct Load {
  int64_t slots = 0;
  int64_t decoding = 0;             // slots with a token to run
  int64_t prefilling = 0;           // slots with a prompt to run
  int64_t chunks_since_decode = 0;  // prefill chunks since the last decode step
};

enum class Action { kIdle, kPrefill, kDecode };

// Alternates one prefill chunk with one decode step while at least half of the slots decode. With
// fewer, a decode step costs nearly as much and yields less, so up to four chunks come between two
// steps. Neither side ever starves.
Action NextAction(const Load& load);

// The size of the next prefill chunk for `remaining` > 0 tokens: the smallest that holds them, or
// else the largest. `sizes` ascend.
int64_t ChunkSize(std::span<const int64_t> sizes, int64_t remaining);

// Where a chunk starts that should start at `start`: never so late that it would pass the end of
// the context. What it recomputes then gets the values it has.
int64_t ChunkStart(int64_t start, int64_t chunk, int64_t context);

// The smallest of the ascending `buckets` with at least `entries`. CHECKs that there is one.
int64_t ContextBucket(std::span<const int64_t> buckets, int64_t entries);

}  // namespace forebay::rollout
