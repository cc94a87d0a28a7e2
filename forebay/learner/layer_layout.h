// Layer layouts of arrays that belong to parameters (optimizer state, adapters): one array a layer
// (and expert) on disk; in a program, ".*." in a name for each of the leading axes that stack them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"

namespace forebay::learner {

// How many leading axes a name stacks: 1 for "model.layers.*.x".
int64_t StackedAxes(std::string_view name);

// "model.layers.3.mlp.x" -> "model.layers.*.mlp.x" and 3; a name with no number (stacked, or of no
// layer) -> itself and 0.
struct LayerOfName {
  std::string stacked_name;
  int64_t layer = 0;
};
LayerOfName LayerOf(const std::string& name);

// Each ".*." array as one array a layer; others are shared as they are.
weights::TensorMap SplitLayers(const weights::TensorMap& tensors);

// The arrays that `wanted` asks for, in its layout, from one array a layer. Types are checked, not
// converted. kInvalidArgument: one is missing, of another shape or type, or not wanted; the message
// begins with `what` ("the optimizer's state").
Result<weights::TensorMap> JoinLayers(const weights::TensorMap& tensors,
                                      std::span<const models::ParamSpec> wanted,
                                      std::string_view what);

}  // namespace forebay::learner
