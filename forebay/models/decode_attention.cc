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
#include "forebay/models/layers.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::DType;
using xla::Value;

namespace {

using decode_attention::AttendFn;
using decode_attention::kLanes;

// query [S, A, H] f32, keys and values [S, K, C, H], positions [S], window -> [S, A, H] f32.
Status Attend(const xla::HostCall& call) {
  const std::span<const xla::HostArray> in = call.operands();
  const int64_t slots = in[1].dims[0], kv_heads = in[1].dims[1], capacity = in[1].dims[2],
                size = in[1].dims[3], group = in[0].dims[1] / kv_heads;
  const auto* query = in[0].as<const float>();
  const auto* positions = in[3].as<const int32_t>();
  const int64_t window = *in[4].as<const int32_t>();
  auto* out = call.results()[0].as<float>();
  const auto row_bytes = size * static_cast<int64_t>(xla::ByteSize(in[1].dtype));
  const double softcap = call.number("softcap");
  const AttendFn fast = decode_attention::Avx512(in[1].dtype);
  const AttendFn attend = fast == nullptr ? decode_attention::Portable(in[1].dtype) : fast;
  call.ForEach(slots * kv_heads, [&](int64_t pair) {
    const int64_t last = std::min<int64_t>(positions[pair / kv_heads], capacity - 1);
    float* to = out + pair * group * size;
    if (last < 0) {
      std::fill_n(to, group * size, 0.0F);
      return;
    }
    const int64_t first = std::max<int64_t>(0, last + 1 - window);
    const int64_t entries = last + 1 - first;
    const int64_t offset = (pair * capacity + first) * row_bytes;
    std::vector<float> scores(static_cast<size_t>(group * (entries + kLanes)));
    attend({.query = query + pair * group * size,
            .keys = in[1].as<const std::byte>() + offset,
            .values = in[2].as<const std::byte>() + offset,
            .out = to,
            .scores = scores.data(),
            .heads = group,
            .size = size,
            .entries = entries,
            .softcap = softcap});
  });
  return OkStatus();
}

bool HasForm(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

}  // namespace

bool CanAttendOnHost(const Value& query_SAH, const Value& keys_SKCH) {
  return xla::UsesHostKernels(*query_SAH.graph()) && query_SAH.dim(2) % kLanes == 0 &&
         HasForm(query_SAH.dtype()) && HasForm(keys_SKCH.dtype());
}

Value HostDecodeAttention(Value query_SAH, Value keys_SKCH, Value values_SKCH, Value positions_S,
                          const ScoreOptions& options) {
  xla::Graph& graph = *query_SAH.graph();
  const double scale =
      options.scale == 0 ? 1 / std::sqrt(static_cast<double>(query_SAH.dim(2))) : options.scale;
  const Value all = xla::Constant(graph, std::numeric_limits<int32_t>::max(), DType::kS32);
  const Value xs[] = {As(query_SAH, DType::kF32) * scale, keys_SKCH, values_SKCH, positions_S,
                      options.window.empty() ? all : options.window};
  return xla::CallHost(
      xla::MakeHostKernel<Attend>("decode_attention"), xs,
      {.results = {{DType::kF32, query_SAH.dims()}}, .numbers = {{"softcap", options.softcap}}})[0];
}

}  // namespace forebay::models
