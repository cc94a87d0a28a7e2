// Products of few rows as host kernels: for decode steps on the CPU.
#pragma once

#include <cstdint>

#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

// The most rows of this dtype (f32 or bf16) for which the host kernel beats the plugin's own
// product. 0: never, because the plugin calls none or the processor has no AVX-512 with bf16
// products.
int64_t HostProductRows(const Client& client, DType dtype);

// From here on, DotGeneral of rows [m, k] and a weight [n, k] of one dtype (f32 or bf16), m at most
// `rows_max`, is a host kernel in this graph, and so without a gradient. Sums are f32 as before, in
// another order; a row's bits do not depend on the others. 0: no longer.
void UseHostProducts(Graph& graph, int64_t rows_max);
// Whether it was called with more than 0: the graph is for a client that calls host kernels, and
// for no gradient.
bool UsesHostKernels(Graph& graph);

}  // namespace forebay::xla
