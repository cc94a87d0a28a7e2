// The engine's programs. Arguments come in this order: the model's parameters (order of
// Model::Params(kPerLayer)), the cache (all keys, then all values, a layer each, donated), then the
// inputs named below. The cache is also the first results.
//
// S slots, C context, T tokens of a chunk, L layers.
#pragma once

#include <cstdint>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {

struct EngineShape {
  int64_t slots = 16;
  int64_t context = 512;
  xla::DType weights_dtype = xla::DType::kF32, cache_dtype = xla::DType::kF32;
  // Products of decode steps with at most this many slots are host kernels (xla/host_product.h).
  int64_t host_product_rows = 0;
};

// One layer's keys (or values) of all slots: [S, K, C, H].
xla::Shape CacheShape(const models::ModelConfig& config, const EngineShape& shape);

// Runs one token of every slot. Inputs: tokens_S, positions_S (s32; negative: idle), and logits_SV
// (f32), which is donated and not read: memory for the result. Further results: the logits_SV of
// the next token, and positions_S for the next step. Attends over the first `bucket` entries.
Result<xla::Program> DecodeProgram(const models::Model& model, const EngineShape& shape,
                                   int64_t bucket);

// Writes the entries of one chunk of one slot's prompt. Inputs: tokens_T (s32), slot, start, length
// (s32 scalars). No further results: the last layer's own output is never computed.
Result<xla::Program> PrefillProgram(const models::Model& model, const EngineShape& shape,
                                    int64_t chunk, int64_t bucket);

// Copies the first `bucket` entries of slot `from` to slot `to` (s32 scalars); zeros if `from` is
// negative. Takes no parameters of the model.
Result<xla::Program> CopyProgram(const models::Model& model, const EngineShape& shape,
                                 int64_t bucket);

// The programs between logits and tokens know neither the model's parameters nor the cache. They
// are apart from the decode step, so that there is one of each and not one a bucket, and so that a
// slot that asks for nothing is sampled by the same program whatever its neighbours ask for.

// Samples. Inputs: logits_SV, positions_S (s32, that the sampled tokens take), temperatures_S
// (f32), seeds_S2 (u32). Results: s32 [2, S] with the tokens and the bits of their
// log-probabilities (one copy to the host), then tokens_S for the next step (which stay there).
Result<xla::Program> SampleProgram(const EngineShape& shape, int64_t vocab_size);
// EditLogits (processors.h). Inputs: logits_SV, tokens_SK, biases_SK, factors_SK, subtract_SK.
Result<xla::Program> EditProgram(int64_t slots, int64_t vocab_size, int64_t width);
// FilterLogits. Inputs: logits_SV, temperatures_S, top_k_S, top_p_S, min_p_S.
Result<xla::Program> FilterProgram(int64_t slots, int64_t vocab_size);
// TopLogprobs. Inputs: logits_SV, temperatures_S, count. Results: tokens and log-probabilities,
// [S, most].
Result<xla::Program> TopProgram(int64_t slots, int64_t vocab_size, int64_t most);

}  // namespace forebay::rollout
