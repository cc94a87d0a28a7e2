// The norm as a host kernel equals the plugin's, in every dtype.
#include "forebay/models/host_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::DType;
using xla::Floats;
using xla::Value;
using xla::Values;

Floats Normed(const xla::Shape& shape, DType weights, const Floats& x, bool on_host) {
  const int64_t width = shape.dims[1];
  return xla::RunFn(
      [&](std::span<const Value> in) -> Values {
        xla::UseHostProducts(*in[0].graph(), on_host ? 1 : 0);
        EXPECT_EQ(CanNormOnHost(in[0]), on_host);
        return {RmsNorm(in[0], in[1], 1e-5)};
      },
      {{shape, x}, {{weights, {width}}, xla::RandomFloats(width, 2, 0.5, 2)}})[0];
}

TEST(HostRmsNorm, EqualsThePluginsForm) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const DType weights : {DType::kF32, DType::kBF16}) {
      for (const int64_t width : {1, 15, 16, 64, 577}) {
        const Floats x = xla::RandomFloats(5 * width, 1, -3, 3);
        const xla::Shape shape{dtype, {5, width}};
        xla::ExpectNear(Normed(shape, weights, x, true), Normed(shape, weights, x, false),
                        dtype == DType::kBF16 ? 1.0 / 64 : 2e-6);
      }
    }
  }
}

TEST(HostRmsNorm, WhatIsNotFiniteStaysInItsRow) {
  Floats x = xla::RandomFloats(3 * 40, 1);
  const Floats before = Normed({DType::kF32, {3, 40}}, DType::kF32, x, true);
  x[50] = std::numeric_limits<float>::infinity();
  const Floats after = Normed({DType::kF32, {3, 40}}, DType::kF32, x, true);
  for (size_t i = 0; i < before.size(); ++i) {
    if (i / 40 == 1) continue;
    EXPECT_EQ(after[i], before[i]) << i;
  }
  EXPECT_TRUE(std::isnan(after[50]));
}

TEST(HostRmsNorm, HasItsFormsAlone) {
  xla::Graph graph("forms");
  xla::UseHostProducts(graph, 4);
  EXPECT_FALSE(CanNormOnHost(graph.Parameter({DType::kF32, {2, 3, 4}}, "three")));
  EXPECT_FALSE(CanNormOnHost(graph.Parameter({DType::kF16, {2, 3}}, "half")));
}

}  // namespace
}  // namespace forebay::models
