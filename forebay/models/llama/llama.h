// Llama: the forward passes of Llama 2 and 3, SmolLM2 and their likes (no biases, RMSNorm, rotary
// positions, SwiGLU, grouped-query attention).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/llama/config.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/ops.h"

namespace forebay::models {

class Llama : public Model {
 public:
  explicit Llama(LlamaConfig config);

  const ModelConfig& config() const override { return config_.base; }
  std::vector<ParamSpec> Params(LayerLayout layout) const override;
  xla::Value Hidden(const ParamValues& params, const PackedInputs& inputs,
                    const ForwardOptions& options) const override;
  xla::Value Head(const ParamValues& params) const override;
  xla::Value Decode(const ParamValues& params, xla::Value tokens_S, xla::Value positions_S,
                    int64_t context, KvCache* cache) const override;
  xla::Value Prefill(const ParamValues& params, xla::Value tokens_T, xla::Value slot,
                     xla::Value start, xla::Value length, int64_t context,
                     KvCache* cache) const override;
  Result<weights::TensorMap> FromCheckpoint(const weights::TensorMap& tensors,
                                            LayerLayout layout) const override;
  Result<weights::TensorMap> ToCheckpoint(const weights::TensorMap& params,
                                          LayerLayout layout) const override;

 private:
  // One layer's weights, in the order of LlamaLayerTensors.
  struct Layer;
  using AttendFn = std::function<xla::Value(xla::Value query, xla::Value key, xla::Value value)>;

  // Residual layer: `attend` maps the projections [N, A*H], [N, K*H], [N, K*H] to [N, A*H].
  xla::Value RunLayer(const Layer& layer, xla::Value x_ND, const AttendFn& attend) const;
  xla::Value Finish(const ParamValues& params, xla::Value x_ND) const;
  // x [N, count * H] -> [N, count, H], rotated.
  xla::Value Heads(xla::Value x, int64_t count, const RopeTables& rope) const;
  // Checks the cache's number of layers and shapes; records an error on the graph.
  bool CheckCache(xla::Graph& graph, const KvCache& cache, int64_t context) const;

  LlamaConfig config_;
  HeadShape heads_;
  std::vector<float> frequencies_;
};

}  // namespace forebay::models
