#include "forebay/xla/host_product.h"

#include <cstdint>

#include "forebay/xla/client.h"
#include "forebay/xla/ffi/few_rows.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

int64_t HostProductRows(const Client& client, DType dtype) {
  if (!client.calls_host_kernels() || ffi::Avx512FewRows(dtype) == nullptr) return 0;
  // Beyond, packing the weight pays.
  return dtype == DType::kBF16 ? 64 : 32;
}

void UseHostProducts(Graph& graph, int64_t rows_max) { graph.impl().host_product_rows = rows_max; }

bool UsesHostKernels(Graph& graph) { return graph.impl().host_product_rows > 0; }

}  // namespace forebay::xla
