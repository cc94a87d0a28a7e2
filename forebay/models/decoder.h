// Decoder: the skeleton of every family here (embedding, residual layers with rotary attention,
// final norm, head), which runs a family's layer over packed training rows, prompt chunks and
// decode steps.
//
// A family says what is in its layer (RunLayer), which weights it has and how layers differ; it
// sees nothing of rows, masks, caches or layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/models/rope.h"
#include "forebay/models/weight_map.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

// What may differ between the layers of one model.
struct LayerKind {
  int rope = 0;        // which of DecoderSpec::rotations
  int64_t window = 0;  // tokens that a query sees; 0: all
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

// Layers that differ by their windows alone.
std::vector<LayerKind> WindowKinds(std::span<const int64_t> windows);

struct DecoderSpec {
  WeightMap map;
  std::vector<Rotation> rotations;
  std::vector<LayerKind> kinds;  // one a layer
  double embed_scale = 1;
  double score_scale = 0, softcap = 0;  // see ScoreOptions
};

// One layer's traced weights, by the suffix of their names, and where a layer's activations change
// between being spread over tokens and over heads or features (Parallel).
class LayerWeights {
 public:
  // Values in the order of `tensors`, which must outlive this. `compute`: of the activations.
  LayerWeights(const std::vector<LayerTensor>& tensors, std::span<const xla::Value> values,
               xla::DType compute, const Parallel& parallel)
      : tensors_(tensors), values_(values), compute_(compute), parallel_(parallel) {}
  // CHECKs that the family has such a weight.
  xla::Value operator[](std::string_view suffix) const;
  xla::Value Enter(xla::Value x) const { return parallel_.Enter(x); }
  xla::Value Leave(xla::Value partial) const { return parallel_.Leave(partial); }
  const Parallel& parallel() const { return parallel_; }

 private:
  const std::vector<LayerTensor>& tensors_;
  std::span<const xla::Value> values_;
  xla::DType compute_;
  Parallel parallel_;
};

class Decoder : public Model {
 public:
  const ModelConfig& config() const override { return spec_.map.config; }
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

 protected:
  // Maps the projections [N, A * H], [N, K * H], [N, K * H], before rotation, to [N, A * H].
  using AttendFn = std::function<xla::Value(xla::Value query, xla::Value key, xla::Value value)>;

  explicit Decoder(DecoderSpec spec) : spec_(std::move(spec)) {}

  // One residual layer: x [N, D] -> [N, D]. Calls `attend` once. Products whose heads or features
  // may be split stand between weights.Enter and weights.Leave.
  virtual xla::Value RunLayer(const LayerWeights& weights, xla::Value x_ND,
                              const AttendFn& attend) const = 0;
  // The family's norm over the last axis, also the final one.
  virtual xla::Value Norm(xla::Value x, xla::Value weight) const;

  double eps() const { return spec_.map.config.rms_eps; }

 private:
  struct Shared;  // what Hidden computes once for all layers

  // The weights of layer `layer`, or the stacked ones for -1.
  xla::Values LayerValues(xla::Graph& graph, const ParamValues& params, int64_t layer) const;
  xla::Value RunPackedLayer(const Shared& shared, std::span<const xla::Value> weights, xla::Value x,
                            const RopeTables& rope, xla::Value window) const;
  xla::Value RunStacked(const Shared& shared, const ParamValues& params, xla::Value x) const;
  xla::Value Embed(const ParamValues& params, xla::Value tokens_N, xla::Value real_N,
                   const ForwardOptions& options) const;
  xla::Value Finish(const ParamValues& params, xla::Value x_ND) const;
  ScoreOptions Scores(xla::Value window) const {
    return {.scale = spec_.score_scale, .softcap = spec_.softcap, .window = window};
  }

  // Parts of Decode and Prefill (decoder_cache.cc).
  struct Step;
  xla::Value RunCachedLayers(const ParamValues& params, const Step& step, xla::Value x,
                             KvCache* cache) const;
  bool CheckCache(xla::Graph& graph, const ParamValues& params, const KvCache& cache,
                  int64_t context) const;

  DecoderSpec spec_;
};

}  // namespace forebay::models
