// What remat, scan and donation do to the memory of a compiled program.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

constexpr int64_t kRows = 512, kWidth = 64, kLayers = 16;
const Shape kHidden{DType::kF32, {kRows, kWidth}};

// A layer with three intermediates eight times as wide as its input.
Value WideLayer(Value h, Value up, Value down) {
  const Value wide = MatMul(h, up);
  return h + MatMul(Sin(wide) * Tanh(wide * wide), down);
}

int64_t TempBytes(const std::function<Value(Value h, Value up, Value down)>& network) {
  Graph graph("memory");
  const Value h = graph.Parameter(kHidden, "h");
  const Value up = graph.Parameter({DType::kF32, {kLayers, kWidth, 8 * kWidth}}, "up");
  const Value down = graph.Parameter({DType::kF32, {kLayers, 8 * kWidth, kWidth}}, "down");
  const Value out = network(h, up, down);
  const Values grads = Gradients(ReduceSum(out * out, {0, 1}), Values{up, down});
  const Result<Program> program = graph.Finish(grads);
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  const auto executable = TestClient().Compile(*program);
  EXPECT_TRUE(executable.ok()) << executable.status().ToString();
  const Result<MemoryStats> memory = (*executable)->memory();
  EXPECT_TRUE(memory.ok()) << memory.status().ToString();
  return memory->temp_bytes;
}

Value Unrolled(Value h, Value up, Value down, bool remat) {
  for (int i = 0; i < kLayers; ++i) {
    const Value u = Squeeze(Slice(up, 0, i, i + 1), 0);
    const Value d = Squeeze(Slice(down, 0, i, i + 1), 0);
    const BodyFn layer = [](std::span<const Value> a) {
      return Values{WideLayer(a[0], a[1], a[2])};
    };
    const Values in{h, u, d};
    h = remat ? Remat(layer, in)[0] : layer(in)[0];
  }
  return h;
}

TEST(Remat, KeepsInputsOfLayersOnly) {
  const auto run = [](bool remat) {
    return TempBytes([=](Value h, Value up, Value down) { return Unrolled(h, up, down, remat); });
  };
  const int64_t plain = run(false);
  const int64_t remat = run(true);
  // Per layer the plain program keeps at least one [rows, 8 * width] array, the other one [rows,
  // width].
  const int64_t wide_bytes = kHidden.bytes() * 8;
  EXPECT_GE(plain, kLayers * wide_bytes);
  EXPECT_LE(remat, plain - (kLayers - 6) * wide_bytes) << "plain " << plain;
}

TEST(Scan, BackwardKeepsACarryALayer) {
  const int64_t scanned = TempBytes([](Value h, Value up, Value down) {
    return Scan([](std::span<const Value> a) { return Values{WideLayer(a[0], a[1], a[2])}; },
                Values{h}, Values{up, down})[0];
  });
  // The carries of all layers, the intermediates of one, and the working copy of a layer's weights.
  const int64_t wide_bytes = kHidden.bytes() * 8;
  EXPECT_LE(scanned, (kLayers + 4) * kHidden.bytes() + 8 * wide_bytes);
}

TEST(Donation, ReusesTheArgumentAndConsumesIt) {
  Graph graph("donate");
  const Value x = graph.Parameter(kHidden, "x");
  const Value g = graph.Parameter(kHidden, "g");
  const Values results{x - g * 0.1};
  const std::vector<Alias> aliases{{.parameter = 0, .output = 0}};
  const Result<Program> program = graph.Finish(results, aliases);
  ASSERT_TRUE(program.ok());
  Client& client = TestClient();
  const auto executable = client.Compile(*program);
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  EXPECT_EQ((*executable)->memory()->alias_bytes, kHidden.bytes());
  const Floats ones(static_cast<size_t>(kHidden.elements()), 1.0F);
  Buffer weights = client.FromVector(ones, kHidden).value();
  Buffer gradient = client.FromVector(ones, kHidden).value();
  Buffer* const arguments[] = {&weights, &gradient};
  const auto outputs = (*executable)->Execute(arguments);
  ASSERT_TRUE(outputs.ok()) << outputs.status().ToString();
  EXPECT_TRUE(weights.empty());
  EXPECT_FALSE(gradient.empty());
  EXPECT_FLOAT_EQ((*outputs)[0].ToVector<float>()->front(), 0.9F);
}

// d/dx of the gradient of a scan: reverse mode over its own output.
TEST(Gradients, DifferentiateAgain) {
  const Argument x = RandomArgument({3}, 1);
  const Argument xs = RandomArgument({4, 3}, 2);
  ExpectGradientsMatch(
      [](std::span<const Value> v) {
        const Values r =
            Scan([&](std::span<const Value> a) { return Values{Sin(a[0] * v[0]) + a[1]}; },
                 Values{v[0]}, Values{v[1]});
        return Gradients(ReduceSum(r[0] * r[0], {0}), Values{v[0], v[1]});
      },
      {x, xs}, {.step = 3e-3});
}

}  // namespace
}  // namespace forebay::xla
