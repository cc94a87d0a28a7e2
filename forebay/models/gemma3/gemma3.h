// Gemma3: the text models (sandwich norms, sliding and global layers with their own rotations,
// norms over each head of query and key, GeGLU, a scaled embedding).
#pragma once

#include "forebay/models/decoder.h"
#include "forebay/models/gemma3/config.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

class Gemma3 : public Decoder {
 public:
  explicit Gemma3(const Gemma3Config& config);

 protected:
  xla::Value RunLayer(const LayerWeights& weights, xla::Value x_ND,
                      const AttendFn& attend) const override;
  xla::Value Norm(xla::Value x, xla::Value weight) const override;
};

}  // namespace forebay::models
