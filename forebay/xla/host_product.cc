#include "forebay/xla/host_product.h"

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/xla/client.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/ffi/few_rows.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

int64_t HostProductRows(const Client& client, DType dtype) {
  if (!client.calls_host_kernels() || ffi::Avx512FewRows(dtype) == nullptr) return 0;
  // Beyond, packing the weight pays.
  return 64;
}

void UseHostProducts(Graph& graph, int64_t rows_max) { graph.impl().host_product_rows = rows_max; }

bool UsesHostKernels(Graph& graph) { return graph.impl().host_product_rows > 0; }

bool TakesHostProduct(const Value& x) {
  return x.shape().rank() == 2 && x.dim(0) <= x.graph()->impl().host_product_rows &&
         (x.dtype() == DType::kF32 || x.dtype() == DType::kBF16);
}

Values HostProducts(Value x, std::span<const Value> weights) {
  Values xs = {x};
  xs.insert(xs.end(), weights.begin(), weights.end());
  std::vector<Shape> results;
  results.reserve(weights.size());
  for (const Value& weight : weights) {
    results.push_back({DType::kF32, {x.dim(0), weight.dim(0)}});
  }
  return CallHost(ffi::FewRowsKernel(), xs, {.results = results});
}

Value HostGatedProduct(Value x, Value gate, Value up, Value down, GateActivation activation) {
  const Value xs[] = {x, gate, up, down};
  return CallHost(ffi::GatedRowsKernel(), xs,
                  {.results = {{DType::kF32, {x.dim(0), down.dim(0)}}},
                   .numbers = {{"activation", static_cast<double>(activation)}}})[0];
}

}  // namespace forebay::xla
