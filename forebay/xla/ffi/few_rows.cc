#include "forebay/xla/ffi/few_rows.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "forebay/base/status.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {
namespace {

// What a thread takes at a time: long beside handing it out, short beside the product.
constexpr int64_t kPartBytes = 96 << 10;
// Rows for which reading a weight takes as long as computing with it.
constexpr int64_t kBalancedRows = 16;
// Independent sums, so that the compiler may use vectors.
constexpr int64_t kLanes = 16;

float ToFloat(float x) { return x; }
float ToFloat(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

template <typename Element>
float Dot(const Element* a, const Element* b, int64_t depth) {
  float sums[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
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

Status Run(const HostCall& call) {
  const std::span<const HostArray> in = call.operands();
  const std::span<const HostArray> out = call.results();
  const bool valid = in.size() == 2 && out.size() == 1 && in[0].dims.size() == 2 &&
                     in[1].dims.size() == 2 && out[0].dims.size() == 2 &&
                     in[0].dtype == in[1].dtype && in[0].dtype != DType::kS32 &&
                     out[0].dtype == DType::kF32 && in[0].dims[1] == in[1].dims[1] &&
                     out[0].dims[0] == in[0].dims[0] && out[0].dims[1] == in[1].dims[0];
  if (!valid) return InvalidArgument("few_rows: the operands are no rows and weight of one dtype");
  const FewRows product{.x = in[0].data,
                        .weight = in[1].data,
                        .out = out[0].as<float>(),
                        .rows = in[0].dims[0],
                        .columns = in[1].dims[0],
                        .depth = in[0].dims[1]};
  const FewRowsColumns fast = Avx512FewRows(in[0].dtype);
  const FewRowsColumns columns = fast == nullptr ? PortableFewRows(in[0].dtype) : fast;
  const auto column_bytes = product.depth * static_cast<int64_t>(ByteSize(in[0].dtype)) *
                            std::max<int64_t>(1, product.rows / kBalancedRows);
  const int64_t tiles =
      std::max<int64_t>(1, kPartBytes / std::max<int64_t>(1, column_bytes * kColumnTile));
  const int64_t part = tiles * kColumnTile;
  call.ForEach((product.columns + part - 1) / part, [&](int64_t i) {
    columns(product, i * part, std::min(product.columns, (i + 1) * part));
  });
  return OkStatus();
}

}  // namespace

FewRowsColumns PortableFewRows(DType dtype) {
  return dtype == DType::kBF16 ? Columns<uint16_t> : Columns<float>;
}

HostKernel FewRowsKernel() { return MakeHostKernel<Run>("few_rows"); }

}  // namespace forebay::xla::ffi
