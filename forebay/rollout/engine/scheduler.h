// The engine's choices of what to run next: pure functions, so that they are tested as tables.
#pragma once

#include <cstdint>
#include <span>

namespace forebay::rollout {

struct Load {
  int64_t decoding = 0;                // slots with a token to run
  int64_t next_chunk = 0;              // tokens of the next prefill chunk; 0: no prompt to run
  int64_t prefilled_since_decode = 0;  // tokens of the chunks since the last decode step
  int64_t prefill_max = 0;             // the most of these while anything decodes
};

enum class Action { kIdle, kPrefill, kDecode };

// Prefill chunks first, as long as no more than `prefill_max` tokens (one chunk of the largest
// size, or several of short prompts) come between two decode steps: a long prompt never holds up
// running sequences for longer, and prompts never starve.
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
