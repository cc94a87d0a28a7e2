// The host kernels of packed attention (xla/host_kernel.h). Private to models/.
//
// Legend: B rows, T queries of a row, R keys of a row, A query heads, K key/value heads, H head
// size.
#pragma once

#include "forebay/models/attention/host/problem.h"
#include "forebay/xla/host_kernel.h"

namespace forebay::models::attention::host {

// Numbers of both: kv_heads, head_dim, scale, softcap (0: none), has_window.
// Operands of both: query [B * T, A * H], key and value [B * R, K * H] (f32 or bf16, alike); cos
// and sin of queries [B * T, H / 2] and of keys [B * R, H / 2], f32; window s32 (of no matter
// without has_window), segments of queries [B, T], their places [T], segments of keys [B, R].
// Segment 0 is padding: what it holds is never read, its results are 0.
//
// Forward -> attended [B * T, A * H] and, in f32, log-sum-exps [B * T, A].
xla::HostKernel ForwardKernel();
// Backward: further operands attended, log-sum-exps, d(attended) -> d(query), d(key), d(value), all
// f32.
xla::HostKernel BackwardKernel();

// The code for this processor, the best that there is.
const Code& BestCode();

}  // namespace forebay::models::attention::host
