// Mixture of experts: routing, and the experts' feed-forward networks on the tokens that were sent
// to them, on one device and over the axis "expert".
//
// Legend: N tokens, D width, K experts a token, E experts at hand, F an expert's feed-forward
// width.
#pragma once

#include <cstdint>

#include "forebay/models/parallel.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

struct Routing {
  xla::Value experts_NK;  // s32
  xla::Value weights_NK;  // f32
};

struct ExpertWeights {
  xla::Value gate_EFD, up_EFD, down_EDF;
};

// The `top_k` most probable experts under softmax(x router^T), in f32; their probabilities, divided
// by their sum where `normalize`. No gradient goes through the choice.
Routing Route(xla::Value x_ND, xla::Value router_ED, int64_t top_k, bool normalize);

// For each token, the sum over its experts of weight * down(silu(gate(x)) * up(x)) -> [N, D], in
// x's dtype. A pair whose expert is not in [0, E) adds nothing: its expert lies on another shard.
//
// Nothing is dropped, and the time is that of the pairs (experts/sorted.h). The same inputs give
// the same bits.
xla::Value MixExperts(xla::Value x_ND, const Routing& routing, const ExpertWeights& weights);

// The same over the devices along "expert", of which each has E experts; `routing` counts them all.
// Each token goes once to each device that has an expert for it, and their sums come back: in
// rounds of `capacity` tokens from each device to each, as many as it takes, so nothing is dropped
// whatever the imbalance (experts/exchange.h). Where nearly all tokens go everywhere they are
// gathered instead (Parallel::expert_traffic). Without devices along "expert": MixExperts.
xla::Value SpreadExperts(const Parallel& parallel, xla::Value x_ND, const Routing& routing,
                         const ExpertWeights& weights, int64_t capacity = 0);

// The capacity that SpreadExperts takes by itself: what an even choice of experts sends, and a
// quarter more.
int64_t ExchangeCapacity(int64_t tokens, int64_t top_k, int64_t devices);

}  // namespace forebay::models
