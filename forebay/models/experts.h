// Mixture of experts: routing, and the experts' feed-forward networks on the tokens that were sent
// to them.
//
// Legend: N tokens, D width, K experts a token, E experts at hand, F an expert's feed-forward
// width.
#pragma once

#include <cstdint>

#include "forebay/xla/graph.h"

namespace forebay::models {

struct Routing {
  xla::Value experts_NK;  // s32
  xla::Value weights_NK;  // f32
};

// The `top_k` most probable experts under softmax(x router^T), in f32; their probabilities, divided
// by their sum where `normalize`. No gradient goes through the choice.
Routing Route(xla::Value x_ND, xla::Value router_ED, int64_t top_k, bool normalize);

// For each token, the sum over its experts of weight * down(silu(gate(x)) * up(x)) -> [N, D], in
// x's dtype. A pair whose expert is not in [0, E) adds nothing: its expert lies on another shard.
//
// Nothing is dropped, and the time is that of the pairs: they are sorted by expert into blocks of
// rows that share one, and a loop runs over the blocks that there are, forward and backward.
// Memory: the rows of all pairs, and the gradients of the experts. The same inputs give the same
// bits.
xla::Value MixExperts(xla::Value x_ND, const Routing& routing, xla::Value gate_EFD,
                      xla::Value up_EFD, xla::Value down_EDF);

}  // namespace forebay::models
