#include "forebay/xla/ffi/few_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/bf16.h"
#include "forebay/xla/ffi/few_rows_parts.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {
namespace {

// Independent sums, so that the compiler may use vectors.
constexpr int64_t kSums = 16;

template <typename Element>
float Dot(const Element* a, const Element* b, int64_t depth) {
  float sums[kSums] = {};
  int64_t k = 0;
  for (; k + kSums <= depth; k += kSums) {
    for (int64_t lane = 0; lane < kSums; ++lane) {
      sums[lane] += ToFloat(a[k + lane]) * ToFloat(b[k + lane]);
    }
  }
  for (int64_t lane = 0; k < depth; ++k, ++lane) sums[lane] += ToFloat(a[k]) * ToFloat(b[k]);
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

template <typename Element>
void Columns(const FewRows& p, int64_t begin, int64_t end) {
  const auto* x = static_cast<const Element*>(p.x);
  const auto* weight = static_cast<const Element*>(p.weight);
  for (int64_t column = begin; column < end; ++column) {
    for (int64_t row = 0; row < p.rows; ++row) {
      p.out[row * p.columns + column] = Dot(x + row * p.depth, weight + column * p.depth, p.depth);
    }
  }
}

template <typename Element>
void Gate(GateActivation activation, const float* gate, const float* up, int64_t count, void* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = gate[i];
    const float z =
        activation == GateActivation::kSilu ? x : (x + 0.044715F * x * x * x) * 1.5957691216F;
    Round(x / (1 + std::exp(-z)) * up[i], static_cast<Element*>(out) + i);
  }
}

template <typename Element>
constexpr FewRowsCode kPortable = {.packed_bytes = [](int64_t, int64_t) -> int64_t { return 0; },
                                   .pack = nullptr,
                                   .tile = [](int64_t) -> int64_t { return 2; },
                                   .columns = Columns<Element>,
                                   .gate = Gate<Element>};

bool IsProduct(const HostArray& x, const HostArray& weight, const HostArray& out) {
  return x.dims.size() == 2 && weight.dims.size() == 2 && out.dims.size() == 2 &&
         x.dtype == weight.dtype && x.dtype != DType::kS32 && out.dtype == DType::kF32 &&
         x.dims[1] == weight.dims[1] && out.dims[0] == x.dims[0] && out.dims[1] == weight.dims[0];
}

Status Run(const HostCall& call) {
  const std::span<const HostArray> out = call.results();
  const HostArray& x = call.operands()[0];
  const std::span<const HostArray> weights = call.operands().subspan(1);
  bool valid = weights.size() == out.size();
  for (size_t i = 0; valid && i < out.size(); ++i) valid = IsProduct(x, weights[i], out[i]);
  if (!valid) return InvalidArgument("few_rows: the operands are no rows and weights of one dtype");
  const int64_t rows = x.dims[0], depth = x.dims[1];
  const FewRowsCode& code = BestFewRows(x.dtype);
  const void* packed = Packed<0>(code, x.data, rows, depth);
  const int64_t columns = ChunkColumns(code, x.dtype, rows, depth);
  std::vector<int64_t> ends;  // of each weight's chunks
  for (const HostArray& weight : weights) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + (weight.dims[0] + columns - 1) / columns);
  }
  SharedChunks chunks(ends.back(), call.threads());
  call.ForEach(call.threads(), [&](int64_t run) {
    chunks.Work(run, [&](int64_t chunk) {
      const auto i = static_cast<size_t>(std::ranges::upper_bound(ends, chunk) - ends.begin());
      const int64_t begin = (chunk - (i == 0 ? 0 : ends[i - 1])) * columns;
      code.columns({.x = x.data,
                    .packed = packed,
                    .weight = weights[i].data,
                    .out = out[i].as<float>(),
                    .rows = rows,
                    .columns = weights[i].dims[0],
                    .depth = depth},
                   begin, std::min(weights[i].dims[0], begin + columns));
    });
  });
  return OkStatus();
}

}  // namespace

const FewRowsCode& PortableFewRows(DType dtype) {
  return dtype == DType::kBF16 ? kPortable<uint16_t> : kPortable<float>;
}

const FewRowsCode& BestFewRows(DType dtype) {
  const FewRowsCode* fast = Avx512FewRows(dtype);
  return fast == nullptr ? PortableFewRows(dtype) : *fast;
}

HostKernel FewRowsKernel() { return MakeHostKernel<Run>("few_rows"); }

}  // namespace forebay::xla::ffi
