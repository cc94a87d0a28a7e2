// Qwen3Moe: Qwen3 with a mixture of experts in each layer (30B-A3B, 235B-A22B).
#pragma once

#include <cstdint>

#include "forebay/models/decoder.h"
#include "forebay/models/qwen3_moe/config.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

class Qwen3Moe : public Decoder {
 public:
  explicit Qwen3Moe(const Qwen3MoeConfig& config);

 protected:
  xla::Value RunLayer(const LayerWeights& weights, xla::Value x_ND,
                      const AttendFn& attend) const override;

 private:
  int64_t experts_per_token_;
  bool normalize_;
};

}  // namespace forebay::models
