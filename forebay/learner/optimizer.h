// AdamW with decoupled weight decay and clipping by global norm, as a traced program.
//
//   g <- g min(1, grad_clip / (|g| + 1e-6))
//   m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
//   p <- p - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p)
//
// (arXiv 1711.05101, as torch.optim.AdamW and clip_grad_norm_.) When |g| is not finite nothing
// changes. With lr = 0 parameters keep their bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/xla/ops.h"

namespace forebay::learner {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0;  // only where ParamSpec::decay
  double grad_clip = 1.0;   // global norm; 0: off
};

// The scalars that change from step to step, in one f32 array of kHyperSlots: a new value never
// recompiles.
enum HyperSlot { kLearningRate, kBiasCorrection1, kBiasCorrection2, kHyperSlots };

// `update` counts from 1: the t of the formula.
std::vector<float> HyperParameters(const AdamWOptions& options, double learning_rate,
                                   int64_t update);

struct AdamWState {
  xla::Values params, m, v;
};
struct AdamWResult {
  AdamWState state;
  xla::Value grad_norm;  // f32 scalar, before clipping
};

// One value a spec in each list; `hyper` is f32 [kHyperSlots].
AdamWResult AdamWUpdate(const AdamWOptions& options, std::span<const models::ParamSpec> specs,
                        const AdamWState& state, std::span<const xla::Value> grads,
                        xla::Value hyper);

}  // namespace forebay::learner
