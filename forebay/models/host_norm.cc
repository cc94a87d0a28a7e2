#include "forebay/models/host_norm.h"

#include <cmath>
#include <cstdint>
#include <span>

#include "forebay/base/status.h"
#include "forebay/xla/bf16.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::DType;
using xla::Round;
using xla::ToFloat;
using xla::Value;

namespace {

// Independent sums, so that the compiler may use vectors.
constexpr int64_t kSums = 16;

template <typename Element>
void NormRow(const Element* x, const float* weight, int64_t width, float eps, Element* out) {
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= width; i += kSums) {
    for (int64_t lane = 0; lane < kSums; ++lane) {
      const float element = ToFloat(x[i + lane]);
      sums[lane] += element * element;
    }
  }
  for (int64_t lane = 0; i < width; ++i, ++lane) sums[lane] += ToFloat(x[i]) * ToFloat(x[i]);
  float sum = 0;
  for (const float part : sums) sum += part;
  const float factor = 1 / std::sqrt(sum / static_cast<float>(width) + eps);
  for (int64_t k = 0; k < width; ++k) Round(ToFloat(x[k]) * factor * weight[k], out + k);
}

template <typename Element>
void NormRows(const xla::HostArray& x, const float* weight, float eps, const xla::HostArray& out) {
  const int64_t rows = x.dims[0], width = x.dims[1];
  for (int64_t row = 0; row < rows; ++row) {
    NormRow(x.as<const Element>() + row * width, weight, width, eps,
            out.as<Element>() + row * width);
  }
}

// x [N, D], weight [D] f32 -> [N, D] of x's dtype. On one thread: handing parts out costs more.
Status Norm(const xla::HostCall& call) {
  const std::span<const xla::HostArray> in = call.operands();
  const auto* weight = in[1].as<const float>();
  const auto eps = static_cast<float>(call.number("eps"));
  if (in[0].dtype == DType::kBF16) {
    NormRows<uint16_t>(in[0], weight, eps, call.results()[0]);
  } else {
    NormRows<float>(in[0], weight, eps, call.results()[0]);
  }
  return OkStatus();
}

}  // namespace

bool CanNormOnHost(const Value& x) {
  return xla::UsesHostKernels(*x.graph()) && x.shape().rank() == 2 &&
         (x.dtype() == DType::kF32 || x.dtype() == DType::kBF16);
}

Value HostRmsNorm(Value x_ND, Value weight_D, double eps) {
  const Value weight =
      weight_D.dtype() == DType::kF32 ? weight_D : xla::Convert(weight_D, DType::kF32);
  const Value xs[] = {x_ND, weight};
  return xla::CallHost(xla::MakeHostKernel<Norm>("rms_norm"), xs,
                       {.results = {x_ND.shape()}, .numbers = {{"eps", eps}}})[0];
}

}  // namespace forebay::models
