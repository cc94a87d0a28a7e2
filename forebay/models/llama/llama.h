// Llama: Llama 2 and 3, SmolLM, SmolLM2 and their likes (no biases, RMSNorm, rotary positions,
// SwiGLU, grouped-query attention).
#pragma once

#include "forebay/models/decoder.h"
#include "forebay/models/llama/config.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

class Llama : public Decoder {
 public:
  explicit Llama(const LlamaConfig& config);

 protected:
  xla::Value RunLayer(const LayerWeights& weights, xla::Value x_ND,
                      const AttendFn& attend) const override;
};

}  // namespace forebay::models
