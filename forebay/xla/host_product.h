// Products of few rows as host kernels: for decode steps on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

// The most rows of this dtype (f32 or bf16) for which the host kernel beats the plugin's own
// product. 0: never, because the plugin calls none or the processor has no AVX-512 (for bf16: with
// products of bf16).
int64_t HostProductRows(const Client& client, DType dtype);

// From here on, DotGeneral of rows [m, k] and a weight [n, k] of one dtype (f32 or bf16), m at most
// `rows_max`, is a host kernel in this graph, and so without a gradient. Sums are f32 as before, in
// another order; a row's bits depend on the number of rows and not on the others. 0: no longer.
void UseHostProducts(Graph& graph, int64_t rows_max);
// Whether it was called with more than 0: the graph is for a client that calls host kernels, and
// for no gradient.
bool UsesHostKernels(Graph& graph);
// Whether DotGeneral of x and a weight of its dtype would be one.
bool TakesHostProduct(const Value& x);

// x [m, k] times each weight [n, k], in f32, as one kernel. Where TakesHostProduct(x).
Values HostProducts(Value x, std::span<const Value> weights);

// What is done to a gate: x / (1 + e^-x), or the tanh form of gelu.
enum class GateActivation { kSilu, kGeluTanh };
// (activation(x gate^T) * (x up^T)) down^T in f32, rounded to x's dtype before the last product, as
// one kernel. x [m, k], gate and up [f, k], down [n, f], of one dtype. Where TakesHostProduct(x).
Value HostGatedProduct(Value x, Value gate, Value up, Value down, GateActivation activation);

}  // namespace forebay::xla
