// Optimizers, as traced programs: clipping by global norm, then one rule a parameter.
//
//   g <- g min(1, grad_clip / (|g| + 1e-6))          |g| over all parameters
//
// kAdamW     m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
//            p <- p - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd p)
//            (arXiv 1711.05101, as torch.optim.AdamW.) 8 bytes of state a weight.
// kAdamW8bit the same, with m and v in one byte each (block_quantize.h); tensors below 4,096
//            elements keep f32.
// kAdafactor rows and columns of the second moment of each matrix instead of the moment itself, no
//            first one, decay 1 - t^-0.8, updates clipped to RMS 1 (arXiv 1804.04235, without the
//            relative step: lr is the schedule's). Some bytes a row and a column.
// kLion      p <- p - lr (sign(b1 m + (1 - b1) g) + wd p), then m <- b2 m + (1 - b2) g (arXiv
//            2302.06675). 4 bytes. Wants about a tenth of AdamW's lr, and ten times its wd.
// kMuon      the matrices of the layers: m <- mu m + g, u = g + mu m orthogonalised by five
//            Newton-Schulz steps, p <- p - lr (0.2 sqrt(max(rows, columns)) u + wd p), whose RMS is
//            that of AdamW, so lr is the same (arXiv 2502.16982). Embedding, head and vectors:
//            AdamW. 4 bytes a weight of the layers.
//
// wd only where ParamSpec::decay. When |g| is not finite nothing changes. With lr = 0 parameters
// keep their bits. State starts at zero.
//
// Over a mesh every one of them gives what one device gives, to rounding: means and norms are
// summed over the devices that have a part of a matrix, and so are Muon's products. State arrays
// are the same whole arrays on every mesh, so what one mesh saved another goes on from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

enum class OptimizerKind { kAdamW, kAdamW8bit, kAdafactor, kLion, kMuon };

// "adamw", "adamw_8bit", "adafactor", "lion", "muon"
std::optional<OptimizerKind> ParseOptimizerKind(std::string_view name);
std::string_view OptimizerKindName(OptimizerKind kind);

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double momentum = 0.95;   // kMuon
  double weight_decay = 0;  // only where ParamSpec::decay
  double grad_clip = 1.0;   // global norm; 0: off
};

// kInvalidArgument names the first number that is out of range, and what would be right.
Status ValidateOptimizer(const OptimizerOptions& options);

// The scalars that change from step to step, in one f32 array of HyperCount: a new value never
// recompiles.
enum HyperSlot {
  kLearningRate,
  kBiasCorrection1,  // 1 / (1 - b1^t)
  kBiasCorrection2,  // 1 / (1 - b2^t); kAdafactor: the decay of this update
  kHyperSlots,
  kUpdateNumber = kHyperSlots,  // kAdamW8bit has one more: t modulo 2^16, for its rounding
};
int64_t HyperCount(const OptimizerOptions& options);

// `update` counts from 1: the t of the formula.
std::vector<float> HyperParameters(const OptimizerOptions& options, double learning_rate,
                                   int64_t update);

// Of the state's arrays on disk. 1: blocks of kAdamW8bit ran through a whole tensor, not its rows.
inline constexpr int64_t kOptimizerStateFormat = 2;

// One array of the optimizer's state.
struct StateSpec {
  std::string slot;  // "m"
  size_t param;      // of which parameter
  xla::Shape shape;  // of a stacked parameter, ".*.": with the layers in front
  xla::PartitionSpec partition;
};
// All of them, in the order in which OptimizerUpdate takes them. Only how they lie depends on the
// mesh.
std::vector<StateSpec> OptimizerStateSpecs(const OptimizerOptions& options,
                                           std::span<const models::ParamSpec> specs,
                                           const xla::Mesh& mesh = {});

struct OptimizerResult {
  xla::Values params, state;
  xla::Value grad_norm;  // f32 scalar, before clipping
};

// One value a spec in params and grads, one a StateSpec in state; `hyper` is f32 [HyperCount]. With
// a mesh of several devices: in the body of a ShardMap over it, on this device's parts.
OptimizerResult OptimizerUpdate(const OptimizerOptions& options,
                                std::span<const models::ParamSpec> specs,
                                std::span<const xla::Value> params,
                                std::span<const xla::Value> state,
                                std::span<const xla::Value> grads, xla::Value hyper,
                                const xla::Mesh& mesh = {});

}  // namespace forebay::learner
