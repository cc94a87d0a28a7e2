// Qwen2: Qwen2 and 2.5 (Llama with biases on query, key and value).
#pragma once

#include "forebay/models/decoder.h"
#include "forebay/models/qwen2/config.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

class Qwen2 : public Decoder {
 public:
  explicit Qwen2(const Qwen2Config& config);

 protected:
  xla::Value RunLayer(const LayerWeights& weights, xla::Value x_ND,
                      const AttendFn& attend) const override;
};

}  // namespace forebay::models
