// Products of a few rows by a weight, for the CPU. Private to xla/; the ops' side of it is
// xla/host_product.h.
//
// XLA's products pack the weight first, which pays when many rows use it. A decode step has as many
// rows as sequences and uses each weight once: here it is streamed from memory as it lies.
#pragma once

#include <cstdint>

#include "forebay/xla/host_kernel.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {

// out [rows, columns] = x [rows, depth] times weight [columns, depth], in f32.
struct FewRows {
  const void* x;
  // x as FewRowsCode::pack leaves it; not read where packed_bytes is 0.
  const void* packed;
  const void* weight;
  float* out;
  int64_t rows, columns, depth;
};

// Code of one dtype (f32 or bf16) and one kind of processor. Arrays need no alignment (64 bytes are
// faster). Each element of a product is summed in an order that depends on `rows` and `depth`
// alone.
struct FewRowsCode {
  // 0: rows of this number are read as they lie.
  int64_t (*packed_bytes)(int64_t rows, int64_t depth);
  // Lays elements [begin, end) of each row of x [rows, depth] out for `columns`. `begin` is even.
  void (*pack)(const void* x, int64_t rows, int64_t depth, int64_t begin, int64_t end,
               void* packed);
  // An even number: ranges of columns that begin and end at multiples of it are the fastest.
  int64_t (*tile)(int64_t rows);
  // Computes columns [begin, end) of `out`.
  void (*columns)(const FewRows& product, int64_t begin, int64_t end);
  // out[i] = activation(gate[i]) * up[i], rounded to the dtype.
  void (*gate)(GateActivation activation, const float* gate, const float* up, int64_t count,
               void* out);
};

// On any processor.
const FewRowsCode& PortableFewRows(DType dtype);
// With AVX-512, and for bf16 with its bf16 products (which take denormals as zero); null where the
// processor has none.
const FewRowsCode* Avx512FewRows(DType dtype);
// The faster of the two.
const FewRowsCode& BestFewRows(DType dtype);

// Operands x and one weight or more of one dtype, an f32 result a weight.
HostKernel FewRowsKernel();
// Operands x and the weights gate, up [F, depth] and down [columns, F] of one dtype. One f32
// result: down (activation(gate x) * up x), rounded to the dtype before the last product. Number
// "activation": a GateActivation.
HostKernel GatedRowsKernel();

}  // namespace forebay::xla::ffi
