// The sampler as traced ops: a race of exponential clocks with counter-based random bits.
//
// S slots, V vocabulary.
#pragma once

#include <cstdint>

#include "forebay/xla/graph.h"

namespace forebay::rollout {

// u32 [S, n] random bits: row s depends on seeds_S2[s] (u32 pair) and counters_S[s] (s32) only.
// Threefry-2x32 (20 rounds; Salmon et al. 2011) turns these into a key per row, two keyed rounds of
// MurmurHash3's 32-bit finalizer turn the key and the column into bits: 17 integer ops an element
// where Threefry would take 100.
xla::Value RandomBits(xla::Value seeds_S2, xla::Value counters_S, int64_t n);

// Logits over temperature; as they are where it is 0 (greedy).
xla::Value Scaled(xla::Value logits_SV, xla::Value temperatures_S);

struct SampleInputs {
  xla::Value logits_SV;       // f32
  xla::Value positions_S;     // s32, that the sampled tokens will take: the counters
  xla::Value temperatures_S;  // f32; 0 is greedy
  xla::Value seeds_S2;        // u32
};

struct Sampled {
  xla::Value tokens_S;    // s32
  xla::Value logprobs_S;  // f32, under softmax(logits / temperature); greedy: of temperature 1
};

// What a row samples depends on its own logits, seed, position and temperature, on nothing else.
Sampled Sample(const SampleInputs& inputs);

}  // namespace forebay::rollout
