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

namespace forebay::rollout {

struct EngineShape {
  int64_t slots = 16;
  int64_t context = 512;
};

// One layer's keys (or values) of all slots: [S, K, C, H].
xla::Shape CacheShape(const models::ModelConfig& config, const EngineShape& shape);

// Runs one token of every slot and samples the next. Inputs: tokens_S, positions_S (s32; negative:
// idle), temperatures_S (f32), seeds_S2 (u32). Further results: s32 [2, S] with the sampled tokens
// and the bits of their log-probabilities (one copy to the host), then tokens_S and positions_S for
// the next step (which stay there). Attends over the first `bucket` entries.
Result<xla::Program> DecodeProgram(const models::Model& model, const EngineShape& shape,
                                   int64_t bucket);

// Writes the entries of one chunk of one slot's prompt. Inputs: tokens_T (s32), slot, start, length
// (s32 scalars). No further results: the last layer's own output is never computed.
Result<xla::Program> PrefillProgram(const models::Model& model, const EngineShape& shape,
                                    int64_t chunk, int64_t bucket);

// Copies all entries of slot `from` to slot `to` (s32 scalars); zeros if `from` is negative. Takes
// no parameters of the model.
Result<xla::Program> CopyProgram(const models::Model& model, const EngineShape& shape);

}  // namespace forebay::rollout
