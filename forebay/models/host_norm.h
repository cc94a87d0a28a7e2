// HostRmsNorm: the norm of a decode step as a host kernel, for the CPU. XLA makes four small
// programs of it, and a step has two for each layer.
#pragma once

#include "forebay/xla/graph.h"

namespace forebay::models {

// Whether the graph calls host kernels (xla/host_product.h) and x is two-dimensional, f32 or bf16.
bool CanNormOnHost(const xla::Value& x);

// What RmsNorm computes (models/layers.h), up to rounding: x [N, D], weight [D] of any of the two
// dtypes -> [N, D] of x's dtype. A row's bits do not depend on the others. Without a gradient.
xla::Value HostRmsNorm(xla::Value x_ND, xla::Value weight_D, double eps);

}  // namespace forebay::models
