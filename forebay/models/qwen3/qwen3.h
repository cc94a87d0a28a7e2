// Qwen3: the dense models (Llama with norms over each head of query and key).
#pragma once

#include "forebay/models/decoder.h"
#include "forebay/models/qwen3/config.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

class Qwen3 : public Decoder {
 public:
  explicit Qwen3(const Qwen3Config& config);

 protected:
  xla::Value RunLayer(const LayerWeights& weights, xla::Value x_ND,
                      const AttendFn& attend) const override;
};

}  // namespace forebay::models
