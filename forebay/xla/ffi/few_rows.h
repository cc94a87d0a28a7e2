// Products of a few rows by a weight, for the CPU. Private to xla/; the op's side of it is
// xla/host_product.h.
//
// XLA's products pack the weight first, which pays when many rows use it. A decode step has as many
// rows as sequences and uses each weight once: here it is streamed from memory as it lies.
#pragma once

#include <cstdint>

#include "forebay/xla/host_kernel.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {

// out [rows, columns] = x [rows, depth] times weight [columns, depth], in f32.
struct FewRows {
  const void* x;
  const void* weight;
  float* out;
  int64_t rows, columns, depth;
};

// Computes columns [begin, end) of `out`; begin is a multiple of kColumnTile. Each element is
// summed in an order that depends on `depth` alone. Arrays need no alignment (64 bytes are faster).
using FewRowsColumns = void (*)(const FewRows&, int64_t begin, int64_t end);
constexpr int64_t kColumnTile = 4;

// For x and weight of this dtype (f32 or bf16), on any processor.
FewRowsColumns PortableFewRows(DType dtype);
// With AVX-512 and its bf16 products (which take denormals as zero); null where the processor has
// none.
FewRowsColumns Avx512FewRows(DType dtype);

// Operands x and weight of one dtype, one f32 result.
HostKernel FewRowsKernel();

}  // namespace forebay::xla::ffi
