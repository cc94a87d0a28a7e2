// HostDecodeAttention: the attention of a decode step as a host kernel, for the CPU.
//
// XLA slices the cache to a context, converts, and runs a product, a softmax and a product for
// every layer, over that context whatever a slot holds. The kernel reads what a slot holds, where
// it lies.
#pragma once

#include <cstdint>

#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

// What a layer's products give for one token of each slot (query [S, A * H], key and value [S, K *
// H], f32 or bf16), and the rotation of the slots' positions.
struct DecodeHeads {
  xla::Value query, key, value;
  RopeTables rope;
};

// Whether the graph calls host kernels (xla/host_product.h) and the kernel has this form: head
// sizes that are multiples of 16, a cache [S, K, C, H] of f32 or bf16.
bool CanAttendOnHost(const xla::Value& query, const xla::Value& keys_SKCH);

// Rotates queries and keys, writes keys and values at the slots' positions into the whole cache [S,
// K, C, H], in place, and attends (DecodeAttention of models/attention.h, up to rounding), each
// slot over [0, position] -> [S, A * H] f32. Where the position is negative nothing is written and
// the result is zeros. The caller keeps positions below C. A slot's bits do not depend on the
// others. Without a gradient.
xla::Value HostDecodeAttention(const DecodeHeads& heads, xla::Value positions_S, xla::Value* keys,
                               xla::Value* values, const ScoreOptions& options = {});

// The kernel for one slot and one key/value head, for tests and for HostDecodeAttention.
namespace decode_attention {

struct Pair {
  const float* query;  // [heads, size], rotated, the scale multiplied in
  const void* keys;    // [entries, size], f32 or bf16
  const void* values;
  float* out;           // [heads, size]
  float* scores;        // room for `heads` times `entries` rounded up to kLanes
  int64_t heads, size;  // size is a multiple of kLanes
  int64_t entries;      // at least 1
  double softcap;       // 0: none
};
constexpr int64_t kLanes = 16;

using AttendFn = void (*)(const Pair&);
// For any processor, and with AVX-512; null where the processor has none.
AttendFn Portable(xla::DType cache);
AttendFn Avx512(xla::DType cache);

}  // namespace decode_attention

}  // namespace forebay::models
