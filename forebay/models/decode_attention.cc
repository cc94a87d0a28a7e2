#include "forebay/models/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/attention.h"
#include "forebay/xla/bf16.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::DType;
using xla::Round;
using xla::ToFloat;
using xla::Value;

namespace {

using decode_attention::AttendFn;
using decode_attention::kLanes;

// to[i] = from[i], rotated by the angles of cos and sin [size / 2] and multiplied.
template <typename From, typename To>
void Rotate(const From* from, const float* cos, const float* sin, float factor, int64_t size,
            To* to) {
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float low = ToFloat(from[i]), high = ToFloat(from[half + i]);
    Round((low * cos[i] - high * sin[i]) * factor, to + i);
    Round((high * cos[i] + low * sin[i]) * factor, to + half + i);
  }
}

template <typename From, typename To>
void Copy(const From* from, int64_t size, To* to) {
  for (int64_t i = 0; i < size; ++i) Round(ToFloat(from[i]), to + i);
}

// One call: operands query [S, A * H], key and value [S, K * H], cos and sin [S, H / 2], positions
// [S], window, the cache's keys and values [S, K, C, H]; results [S, A * H] and the cache's.
struct Problem {
  explicit Problem(const xla::HostCall& call)
      : in(call.operands()),
        out(call.results()),
        slots(in[7].dims[0]),
        kv_heads(in[7].dims[1]),
        capacity(in[7].dims[2]),
        size(in[7].dims[3]),
        group(in[0].dims[1] / (kv_heads * size)),
        window(*in[6].as<const int32_t>()),
        scale(static_cast<float>(call.number("scale"))),
        softcap(call.number("softcap")) {}

  const std::span<const xla::HostArray> in, out;
  const int64_t slots, kv_heads, capacity, size, group, window;
  const float scale;
  const double softcap;
};

template <typename Element, typename Cached>
void AttendPair(const Problem& p, AttendFn attend, int64_t pair) {
  const int64_t slot = pair / p.kv_heads;
  const int64_t last = std::min<int64_t>(p.in[5].as<const int32_t>()[slot], p.capacity - 1);
  float* to = p.out[0].as<float>() + pair * p.group * p.size;
  if (last < 0) {
    std::fill_n(to, p.group * p.size, 0.0F);
    return;
  }
  const float* cos = p.in[3].as<const float>() + slot * p.size / 2;
  const float* sin = p.in[4].as<const float>() + slot * p.size / 2;
  Cached* keys = p.out[1].as<Cached>() + pair * p.capacity * p.size;
  Cached* values = p.out[2].as<Cached>() + pair * p.capacity * p.size;
  Rotate(p.in[1].as<const Element>() + pair * p.size, cos, sin, 1, p.size, keys + last * p.size);
  Copy(p.in[2].as<const Element>() + pair * p.size, p.size, values + last * p.size);

  const int64_t first = std::max<int64_t>(0, last + 1 - p.window);
  const int64_t entries = last + 1 - first;
  thread_local std::vector<float> room;
  const auto needed = static_cast<size_t>(p.group * (p.size + entries + kLanes));
  if (room.size() < needed) room.resize(2 * needed);
  for (int64_t i = 0; i < p.group; ++i) {
    Rotate(p.in[0].as<const Element>() + (pair * p.group + i) * p.size, cos, sin, p.scale, p.size,
           room.data() + i * p.size);
  }
  attend({.query = room.data(),
          .keys = keys + first * p.size,
          .values = values + first * p.size,
          .out = to,
          .scores = room.data() + p.group * p.size,
          .heads = p.group,
          .size = p.size,
          .entries = entries,
          .softcap = p.softcap});
}

Status Attend(const xla::HostCall& call) {
  const Problem p(call);
  const DType cached = p.in[7].dtype;
  const AttendFn fast = decode_attention::Avx512(cached);
  const AttendFn attend = fast == nullptr ? decode_attention::Portable(cached) : fast;
  const bool narrow = p.in[0].dtype == DType::kBF16;
  const auto run = cached == DType::kBF16
                       ? (narrow ? AttendPair<uint16_t, uint16_t> : AttendPair<float, uint16_t>)
                       : (narrow ? AttendPair<uint16_t, float> : AttendPair<float, float>);
  call.ForEach(p.slots * p.kv_heads, [&](int64_t pair) { run(p, attend, pair); });
  return OkStatus();
}

bool HasForm(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

}  // namespace

bool CanAttendOnHost(const Value& query, const Value& keys_SKCH) {
  return xla::UsesHostKernels(*query.graph()) && keys_SKCH.dim(3) % kLanes == 0 &&
         HasForm(query.dtype()) && HasForm(keys_SKCH.dtype());
}

Value HostDecodeAttention(const DecodeHeads& heads, Value positions_S, Value* keys, Value* values,
                          const ScoreOptions& options) {
  xla::Graph& graph = *heads.query.graph();
  const double scale =
      options.scale == 0 ? 1 / std::sqrt(static_cast<double>(keys->dim(3))) : options.scale;
  const Value all = xla::Constant(graph, std::numeric_limits<int32_t>::max(), DType::kS32);
  const Value xs[] = {heads.query,
                      heads.key,
                      heads.value,
                      heads.rope.cos_NH,
                      heads.rope.sin_NH,
                      positions_S,
                      options.window.empty() ? all : options.window,
                      *keys,
                      *values};
  const xla::Values out =
      xla::CallHost(xla::MakeHostKernel<Attend>("decode_attention"), xs,
                    {.results = {{DType::kF32, heads.query.dims()}, keys->shape(), values->shape()},
                     .numbers = {{"scale", scale}, {"softcap", options.softcap}},
                     .in_place = {{7, 1}, {8, 2}}});
  *keys = out[1];
  *values = out[2];
  return out[0];
}

}  // namespace forebay::models
