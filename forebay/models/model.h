// Model: a family's forward passes, written once and traced into both the learner's and the
// engine's programs.
//
// Legend of shapes: B rows, T tokens in a row, D width, V vocabulary, S slots, K key/value heads, C
// context, H head size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/parallel.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {

// What every family knows of itself (from config.json).
struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  int64_t vocab_size = 0, width = 0, layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0,
          ff_width = 0;
  int64_t experts = 0, experts_per_token = 0;  // of each layer; 0: it has none
  int64_t context_max = 0;
  double rms_eps = 1e-5, rope_theta = 1e4;
  bool tied_embedding = true;
  int32_t bos_token = -1, eos_token = -1;
};

struct ParamSpec {
  // As in the Hugging Face checkpoint, or with ".*." for a stacked layer or expert dimension.
  std::string name;
  xla::Shape shape;
  bool decay = true;  // takes weight decay (matrices do, norms and biases do not)
  // Its value in a new model; empty: random (RandomWeights).
  std::optional<float> start = {};
  xla::PartitionSpec partition = {};  // over a mesh of Forebay's axes
};

// kPerLayer: one parameter a layer, layers unrolled in the program: fastest on the CPU plugin.
// kStacked: layers along a leading axis, one scan: 80 layers compile like one.
enum class LayerLayout { kPerLayer, kStacked };

// How training rows attend (models/packed_attention.h): kAuto is host where host kernels run; else
// square for short rows, whose memory and time grow with the square of the row, and blocks for long
// ones.
enum class AttentionForm { kAuto, kSquare, kBlocks, kHost };

struct ForwardOptions {
  LayerLayout layout = LayerLayout::kPerLayer;
  bool remat = false;  // recompute each layer in the backward pass (kStacked always does)
  AttentionForm attention = AttentionForm::kAuto;
  // Whether the program may call host kernels: Client::calls_host_kernels() of the client that is
  // to compile it.
  bool host_kernels = false;
  // kF32, or kBF16: activations and products in bf16 over f32 parameters (master weights), with
  // sums, norms, softmax and the gradients of the parameters in f32. Hidden still returns f32.
  xla::DType compute = xla::DType::kF32;
  // On: parameters and inputs are this device's parts, as ParamSpec::partition and RowsPartition
  // say, and so is what Hidden returns.
  Parallel parallel;
};

// The traced parameters of one graph, by ParamSpec name.
using ParamValues = std::map<std::string, xla::Value>;

// Inputs of a packed training row: segment 0 is padding, whose content must not matter.
struct PackedInputs {
  xla::Value tokens_BT, segments_BT, positions_BT;  // s32
};

// One layer's key/value cache for all slots: [S, K, C, H].
struct KvCache {
  std::vector<xla::Value> keys, values;  // one a layer
};

class Model {
 public:
  // From config.json text. kInvalidArgument names an unsupported architecture or option.
  static Result<std::unique_ptr<Model>> Create(const std::string& config_json);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual std::vector<ParamSpec> Params(LayerLayout layout) const = 0;

  // Final hidden states [B, T, D], after the last norm. Attention is causal and within a segment.
  virtual xla::Value Hidden(const ParamValues& params, const PackedInputs& inputs,
                            const ForwardOptions& options) const = 0;
  // The output head's weight [V, D].
  virtual xla::Value Head(const ParamValues& params) const = 0;

  // One decode step of all slots: tokens_S and positions_S (s32, the position each token takes) ->
  // hidden [S, D]. Writes keys and values at positions_S, attends over [0, position], looking at no
  // more than `context` cached entries. A slot with position < 0 is idle: its cache stays unchanged
  // and its result is meaningless. kPerLayer only.
  virtual xla::Value Decode(const ParamValues& params, xla::Value tokens_S, xla::Value positions_S,
                            int64_t context, KvCache* cache) const = 0;
  // One chunk of one slot's prompt: tokens_T at positions start, start+1, ... -> hidden [T, D].
  // Writes the cache of `slot` (s32 scalar). Tokens past `length` (s32 scalar) are padding: they
  // may write garbage beyond start+length, which later writes overwrite before it is read. The
  // caller keeps start + T <= C.
  virtual xla::Value Prefill(const ParamValues& params, xla::Value tokens_T, xla::Value slot,
                             xla::Value start, xla::Value length, int64_t context,
                             KvCache* cache) const = 0;

  // Checks that `tensors` holds exactly this model's weights (names, shapes), converts them to f32
  // and to `layout`. kInvalidArgument lists what is missing, extra or of the wrong shape: nothing
  // is skipped silently.
  virtual Result<weights::TensorMap> FromCheckpoint(const weights::TensorMap& tensors,
                                                    LayerLayout layout) const = 0;
  // The inverse: Hugging Face names and layouts.
  virtual Result<weights::TensorMap> ToCheckpoint(const weights::TensorMap& params,
                                                  LayerLayout layout) const = 0;
};

// Log-probabilities of target_N under softmax(hidden_ND Head^T / temperature), computed `chunk`
// tokens at a time, forward and backward, so that no [N, V] array exists. Also the entropy of each
// position if `entropy` is not null (no gradient). hidden_ND, head_VD, targets_N s32 -> [N] f32. If
// hidden or head is bf16, products take both in bf16 and accumulate in f32; each gradient has the
// dtype of what it belongs to. N need not be a multiple of chunk. A negative target (padding) has
// log-probability 0 and no gradient, whatever the cotangent. `parallel` on: head_VD is this
// device's part along tensor, gathered along fsdp.
xla::Value ChunkedLogprobs(xla::Value hidden_ND, xla::Value head_VD, xla::Value targets_N,
                           double temperature, int64_t chunk, xla::Value* entropy_N = nullptr,
                           const Parallel& parallel = Parallel());

// Random parameters in the layout kPerLayer (normal, standard deviation `scale`; norms and biases
// have their neutral value) for tests and for training from scratch.
weights::TensorMap RandomWeights(const Model& model, uint64_t seed, double scale = 0.02);

}  // namespace forebay::models
