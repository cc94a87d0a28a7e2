// HostDecodeAttention: the attention of a decode step as a host kernel, for the CPU.
//
// XLA slices the cache to a context, converts, and runs a product, a softmax and a product for
// every layer, over that context whatever a slot holds. The kernel reads what a slot holds, where
// it lies.
#pragma once

#include <cstdint>

#include "forebay/models/attention.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

// Whether the graph calls host kernels (xla/host_product.h) and the kernel has this form: head
// sizes that are multiples of 16, query f32 or bf16, cache f32 or bf16.
bool CanAttendOnHost(const xla::Value& query_SAH, const xla::Value& keys_SKCH);

// What DecodeAttention computes (models/attention.h), up to rounding: query [S, A, H] (rotated),
// the whole cache [S, K, C, H], each slot over [0, position] -> [S, A, H] f32; zeros where the
// position is negative. The caller keeps positions below C. A slot's bits do not depend on the
// others. Without a gradient.
xla::Value HostDecodeAttention(xla::Value query_SAH, xla::Value keys_SKCH, xla::Value values_SKCH,
                               xla::Value positions_S, const ScoreOptions& options = {});

// The kernel for one slot and one key/value head, for tests and for HostDecodeAttention.
namespace decode_attention {

struct Pair {
  const float* query;  // [heads, size], the scale multiplied in
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
