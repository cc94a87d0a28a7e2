// What happens to logits before they are sampled, as traced ops, and what is told about them
// afterwards. A row that asks for nothing keeps its logits bit for bit.
//
// S slots, V vocabulary, K edits of a slot.
#pragma once

#include <cstdint>

#include "forebay/xla/graph.h"

namespace forebay::rollout {

// The arrays of LogitEdits::Pack.
struct EditInputs {
  xla::Value tokens_SK;                           // s32; -1: unused
  xla::Value biases_SK, factors_SK, subtract_SK;  // f32
};
xla::Value EditLogits(xla::Value logits_SV, const EditInputs& inputs);

struct FilterInputs {
  xla::Value temperatures_S;    // f32; 0 (greedy) filters nothing
  xla::Value top_k_S;           // s32; 0: all
  xla::Value top_p_S, min_p_S;  // f32
};
// Sets the logits of what min-p, top-k and top-p (in this order, see GenerateRequest) take away to
// minus infinity. Thresholds are found by bisection over the 32 bits of the logits, in 64 passes
// over them; XLA's sort takes several times as long on a CPU.
xla::Value FilterLogits(xla::Value logits_SV, const FilterInputs& inputs);

struct TopInputs {
  xla::Value logits_SV;       // as they are sampled
  xla::Value temperatures_S;  // f32; 0 is told as 1
  xla::Value count;           // s32 scalar: how many are found, at most `most`
};
struct Top {
  xla::Value tokens_SN;    // s32, best first
  xla::Value logprobs_SN;  // f32; where less than `count` tokens can be sampled, -inf
};
Top TopLogprobs(const TopInputs& inputs, int64_t most);

}  // namespace forebay::rollout
