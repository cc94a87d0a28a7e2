// Host kernels: called from every kind of body, refused with a reason.
#include "forebay/xla/host_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = factor * x, and the rank, first size and s32 operand as the kernel sees them.
Status Multiply(const HostCall& call) {
  const HostArray& x = call.operands()[0];
  const HostArray& y = call.results()[0];
  int64_t count = 1;
  for (const int64_t size : x.dims) count *= size;
  const auto factor = static_cast<float>(call.number("factor"));
  call.ForEach(count, [&](int64_t i) { y.as<float>()[i] = factor * x.as<float>()[i]; });
  auto* seen = call.results()[1].as<int32_t>();
  seen[0] = static_cast<int32_t>(x.dims.size());
  seen[1] = static_cast<int32_t>(x.dims[0]);
  seen[2] = *call.operands()[1].as<int32_t>();
  return OkStatus();
}

// y[i] = 1 + y[i - 1], where each index waits for the one before.
Status Chain(const HostCall& call) {
  auto* y = call.results()[0].as<float>();
  std::vector<std::atomic<int>> done(100);
  std::vector<float> values(100);
  call.ForEach(100, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    while (i > 0 && done[at - 1] == 0) std::this_thread::yield();
    values[at] = i == 0 ? 1 : values[at - 1] + 1;
    done[at] = 1;
  });
  y[0] = values[99];
  return OkStatus();
}

// The second operand with its first element replaced by the first operand's, in place; and what was
// there.
Status Replace(const HostCall& call) {
  auto* y = call.results()[1].as<float>();
  *call.results()[0].as<float>() = y[0];
  y[0] = *call.operands()[0].as<float>();
  return OkStatus();
}

const HostKernel& MultiplyKernel() {
  static const HostKernel kernel = MakeHostKernel<Multiply>("test_multiply");
  return kernel;
}

Values CallMultiply(Value x, double factor) {
  const Value xs[] = {x, Constant(*x.graph(), 42, DType::kS32)};
  return CallHost(MultiplyKernel(), xs,
                  {.results = {x.shape(), {DType::kS32, {3}}}, .numbers = {{"factor", factor}}});
}

// The same with its gradient, which calls the kernel as well.
Value Times(Value x, double factor) {
  const Value xs[] = {x};
  return CustomVjp(
      [=](std::span<const Value> in) { return Values{CallMultiply(in[0], factor)[0]}; },
      [=](std::span<const Value>, std::span<const Value>, std::span<const Value> d) {
        return Values{CallMultiply(d[0], factor)[0]};
      },
      xs)[0];
}

TEST(HostKernel, SeesItsOperandsAndNumbers) {
  ASSERT_TRUE(TestClient().calls_host_kernels());
  const auto out = RunFn([](std::span<const Value> x) { return CallMultiply(x[0], -0.1); },
                         {{{DType::kF32, {2, 3}}, {1, 2, 3, 4, 5, 6}}});
  ASSERT_EQ(out.size(), 2u);
  ExpectNear(out[0], {-0.1F, -0.2F, -0.3F, -0.4F, -0.5F, -0.6F}, 1e-7);
  EXPECT_THAT(out[1], ElementsAre(2, 2, 42));
}

// XLA may keep a transposed array in another order; the kernel gets it row-major.
TEST(HostKernel, OperandsAreRowMajor) {
  const auto out = RunFn(
      [](std::span<const Value> x) { return Values{CallMultiply(Transpose(x[0], {1, 0}), 1)[0]}; },
      {{{DType::kF32, {2, 3}}, {1, 2, 3, 4, 5, 6}}});
  EXPECT_THAT(out[0], ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(HostKernel, RunsInEveryKindOfBodyWithItsGradient) {
  const Argument x = RandomArgument({4, 3}, 7);
  const std::vector<TracedFn> forms = {
      [](std::span<const Value> in) { return Values{Times(in[0], 3)}; },
      [](std::span<const Value> in) {
        const Value zero = Full(*in[0].graph(), 0, {DType::kF32, {3}});
        return Scan(
            [](std::span<const Value> s) -> Values {
              const Value y = Times(s[1], 3);
              return {s[0] + y * y, y};
            },
            Values{zero}, in);
      },
      [](std::span<const Value> in) {
        return Remat([](std::span<const Value> s) { return Values{Times(Sin(Times(s[0], 2)), 3)}; },
                     in);
      },
      [](std::span<const Value> in) {
        const Value some =
            ReduceAny(Compare(in[0], Constant(*in[0].graph(), 0, DType::kF32), Comparison::kGt));
        return Cond(
            some, [](std::span<const Value> s) { return Values{Times(s[0], 3)}; },
            [](std::span<const Value> s) { return Values{s[0]}; }, in);
      }};
  for (const TracedFn& fn : forms) ExpectGradientsMatch(fn, {x});
  const auto out = RunFn(forms[1], {x});
  for (size_t i = 0; i < x.values.size(); ++i) EXPECT_NEAR(out[1][i], 3 * x.values[i], 1e-6);
}

TEST(HostKernel, GetsTheLocalPartInAShardMap) {
  ASSERT_TRUE(MeshTestClient().calls_host_kernels());
  const Argument x = RandomArgument({8, 3}, 3);
  const auto out =
      RunShardMap({.mesh = *Mesh::Create({{"data", 4}}),
                   .in_specs = {PartitionSpec({Axes{"data"}, {}})},
                   .out_specs = {PartitionSpec({Axes{"data"}, {}}), PartitionSpec({Axes{"data"}})}},
                  [](std::span<const Value> in) { return CallMultiply(in[0], 2); }, {x});
  for (size_t i = 0; i < x.values.size(); ++i) EXPECT_EQ(out[0][i], 2 * x.values[i]);
  EXPECT_THAT(out[1], ElementsAre(2, 2, 42, 2, 2, 42, 2, 2, 42, 2, 2, 42));
}

TEST(HostKernel, AnIndexMayWaitForLowerOnes) {
  static const HostKernel kernel = MakeHostKernel<Chain>("test_chain");
  for (int i = 0; i < 20; ++i) {
    const auto out = RunFn(
        [](std::span<const Value> x) { return CallHost(kernel, x, {.results = {x[0].shape()}}); },
        {{{DType::kF32, {1}}, {0}}});
    ASSERT_THAT(out[0], ElementsAre(100));
  }
}

TEST(HostKernel, WritesInPlaceAndLeavesWhatIsUsedLater) {
  static const HostKernel kernel = MakeHostKernel<Replace>("test_replace");
  const auto out = RunFn(
      [](std::span<const Value> x) {
        const Shape one{DType::kF32, {1}};
        const HostCallOptions options{.results = {one, x[1].shape()}, .in_place = {{1, 1}}};
        const Values first = CallHost(kernel, x, options);
        const Value more[] = {x[0] * 2.0, first[1]};
        const Values second = CallHost(kernel, more, options);
        // The operand of the first call lives on; that of the second does not.
        return Values{first[0], second[0], second[1], x[1] * 3.0};
      },
      {{{DType::kF32, {1}}, {7}}, {{DType::kF32, {3}}, {1, 2, 3}}});
  EXPECT_THAT(out[0], ElementsAre(1));
  EXPECT_THAT(out[1], ElementsAre(7));
  EXPECT_THAT(out[2], ElementsAre(14, 2, 3));
  EXPECT_THAT(out[3], ElementsAre(3, 6, 9));
}

TEST(HostKernel, TraceErrorsNameTheKernel) {
  const auto error = [](const HostKernel& kernel, const Shape& shape,
                        const HostCallOptions& options) {
    Graph graph("bad");
    const Value xs[] = {graph.Parameter(shape, "x")};
    CallHost(kernel, xs, options);
    return graph.status().message();
  };
  const Shape vector{DType::kF32, {3}};
  EXPECT_THAT(error(MultiplyKernel(), vector, {}),
              HasSubstr("test_multiply: a kernel has a result"));
  EXPECT_THAT(error(MultiplyKernel(), {DType::kPred, {3}}, {.results = {vector}}),
              HasSubstr("pred[3] is neither f32, bf16 nor s32"));
  EXPECT_THAT(error({"a b", MultiplyKernel().entry}, vector, {.results = {vector}}),
              HasSubstr("a name of letters, digits and _"));
  EXPECT_THAT(error(MultiplyKernel(), vector, {.results = {vector}, .numbers = {{"1x", 1}}}),
              HasSubstr("no number to pass on: '1x'"));
  for (const std::vector<HostCallOptions::InPlace>& wrong :
       {std::vector<HostCallOptions::InPlace>{{0, 1}}, {{1, 0}}, {{-1, 0}}, {{0, 0}, {0, 0}}}) {
    EXPECT_THAT(error(MultiplyKernel(), vector, {.results = {vector}, .in_place = wrong}),
                HasSubstr("each result in place lies in one operand of its shape"));
  }
  EXPECT_THAT(
      error(MultiplyKernel(), vector, {.results = {{DType::kF32, {4}}}, .in_place = {{0, 0}}}),
      HasSubstr("each result in place"));
}

TEST(HostKernel, HasNoGradientOfItsOwn) {
  Graph graph("no_gradient");
  const Value x = graph.Parameter({DType::kF32, {3}}, "x");
  Gradients(ReduceSum(CallMultiply(x, 2)[0], {0}), Values{x});
  EXPECT_THAT(graph.status().message(), HasSubstr("CallHost: has no gradient"));
}

}  // namespace
}  // namespace forebay::xla
