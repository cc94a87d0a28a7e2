// LoRA: low-rank adapters beside frozen weights (arXiv 2106.09685).
//
//   W' = W + s B A     A [rank, in], B [out, rank]; s = alpha / rank, or alpha / sqrt(rank)
//   (rsLoRA,
//                      arXiv 2312.03732)
//
// The programs compute W' before the model's forward pass, which knows nothing of adapters; the
// gradient of W' becomes those of A and B. So any linear of any family can have one, at the cost of
// full fine-tuning's computation; what is saved is the optimizer's state, and what is written.
// B starts at zero, so the first step starts from the base model's own outputs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/ops.h"

namespace forebay::learner {

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapters, all weights are trained
  double alpha = 16;
  bool rslora = false;
  // Which linears: "all-linear" (every matrix of the layers), the last parts of a module's name
  // ("q_proj", "mlp.down_proj"), or a pattern of the whole name with * ("model.layers.1*.q_proj").
  std::vector<std::string> targets = {"all-linear"};
};

// kInvalidArgument: rank or alpha out of range, or no target.
Status ValidateLora(const LoraOptions& options);

double LoraScale(const LoraOptions& options);

// The adapters of the linears among `specs` that match: for each its A, then its B, named
// "MODULE.lora_A.weight". kInvalidArgument names a target that matches none, and what there is.
Result<std::vector<models::ParamSpec>> LoraSpecs(std::span<const models::ParamSpec> specs,
                                                 const LoraOptions& options);

// The effective weights: `base` with what the adapters add. One value a spec in each.
xla::Values ApplyLora(std::span<const models::ParamSpec> specs, std::span<const xla::Value> base,
                      std::span<const models::ParamSpec> adapter_specs,
                      std::span<const xla::Value> adapters, double scale);

// First adapters: A uniform in +-1/sqrt(in), as PEFT; B zero. In the layout of the specs.
weights::TensorMap InitialAdapters(std::span<const models::ParamSpec> adapter_specs, uint64_t seed);

// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.lora_A.weight" or
// ".weight".
std::string ModuleName(const std::string& parameter);

// The same on the host: base tensors in any float type, adapters with one array a layer; what is
// merged is f32. kInvalidArgument when an adapter has no weight of its shape in `base`.
Result<weights::TensorMap> MergeAdapters(const weights::TensorMap& base,
                                         const weights::TensorMap& adapters, double scale);

// Writes adapter_config.json and adapter_model.safetensors, as PEFT reads them. `adapters` have one
// array a layer. Blocks. Errors: the file system's.
Status ExportPeft(const std::string& folder, const LoraOptions& options,
                  const weights::TensorMap& adapters, const std::string& base_model);

}  // namespace forebay::learner
