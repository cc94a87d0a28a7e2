// Property: the gradient of any expression is its central difference, straight, in a scan, remat or
// a branch.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

// A random DAG over [3, 4] values: the same ops for a seed whatever the inputs. Every op keeps
// values small and is smooth, so that a central difference is a fair judge.
class RandomExpression {
 public:
  explicit RandomExpression(uint64_t seed) : state_(seed * 2654435761ULL + 1) {}

  Value Build(const Values& inputs, int ops) {
    Values pool = inputs;
    for (int i = 0; i < ops; ++i) pool.push_back(Step(pool));
    Value sum = pool.back();
    for (size_t i = inputs.size(); i + 1 < pool.size(); ++i) sum = sum + pool[i] * 0.25;
    return Tanh(sum);
  }

 private:
  uint32_t Next(uint32_t below) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<uint32_t>(state_ >> 33) % below;
  }
  Value Pick(const Values& pool) { return pool[Next(static_cast<uint32_t>(pool.size()))]; }

  Value Step(const Values& pool) {
    const Value a = Pick(pool);
    const Value b = Pick(pool);
    const Value positive = a * a + 1.0;
    switch (Next(22)) {
      case 0:
        return a + b;
      case 1:
        return a - b * 0.5;
      case 2:
        return Tanh(a * b);
      case 3:
        return Sin(a) / positive;
      case 4:
        return Tanh(b) / positive;
      case 5:
        return Log(positive);
      case 6:
        return Rsqrt(positive);
      case 7:
        return Sqrt(positive) - 1.0;
      case 8:
        return Silu(a);
      case 9:
        return Logistic(a - b);
      case 10:
        return Exp(Tanh(a)) * 0.3;
      case 11:
        return Cos(a) * Tanh(b);
      case 12:
        return Softmax(a, static_cast<int>(Next(2)));
      case 13:
        return a * ReduceMean(b, {0}, true);
      case 14:
        return Tanh(a + LogSumExp(b, {1}, true));
      case 15:
        return Reverse(a, 1) * 0.7;
      case 16:
        return Reshape(Transpose(a, {1, 0}), {3, 4});
      case 17:
        return Concatenate(Values{Slice(a, 1, 2, 4), Slice(b, 1, 0, 2)}, 1);
      case 18:
        return Tanh(CumSum(a, 0));
      case 19:
        return MatMul(Tanh(MatMul(a, Reshape(b, {4, 3}))), a) * 0.3;
      case 20:
        return Select(Compare(Iota(*a.graph(), {DType::kS32, {3, 4}}, 1),
                              Full(*a.graph(), 2, {DType::kS32, {3, 4}}), Comparison::kLt),
                      a, b * 0.5);
      default:
        return Pow(positive, Full(*a.graph(), 0.3, a.shape()));
    }
  }

  uint64_t state_;
};

class RandomGradients : public testing::TestWithParam<int> {};

TEST_P(RandomGradients, MatchCentralDifferences) {
  const auto seed = static_cast<uint64_t>(GetParam());
  const std::vector<Argument> arguments{RandomArgument({3, 4}, seed),
                                        RandomArgument({3, 4}, seed + 50),
                                        RandomArgument({3, 4}, seed + 99)};
  ExpectGradientsMatch(
      [&](std::span<const Value> v) {
        return Values{RandomExpression(seed).Build({v.begin(), v.end()}, 25)};
      },
      arguments, {.step = 5e-3, .positions = 3});
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGradients, testing::Range(1, 9));

class RandomBodies : public testing::TestWithParam<int> {};

// One random body: called three times, scanned three times, scanned in remat, and chosen by Cond.
TEST_P(RandomBodies, EveryControlFlowGivesTheSameGradient) {
  const auto seed = static_cast<uint64_t>(GetParam());
  const std::vector<Argument> arguments{RandomArgument({3, 4}, seed),
                                        RandomArgument({3, 3, 4}, seed + 1),
                                        RandomArgument({3, 4}, seed + 2)};
  const auto step = [seed](Value h, Value x, Value w) {
    return RandomExpression(seed).Build({h, x, w}, 8);
  };
  const auto with_gradients = [&](const TracedFn& fn) {
    return RunFn(
        [&](std::span<const Value> v) {
          Values out = fn(v);
          const Values grads = Gradients(ReduceSum(Sin(out[0]), {0, 1}), v);
          out.insert(out.end(), grads.begin(), grads.end());
          return out;
        },
        arguments);
  };
  const auto expected = with_gradients([&](std::span<const Value> v) {
    Value h = v[0];
    for (int i = 0; i < 3; ++i) h = step(h, Squeeze(Slice(v[1], 0, i, i + 1), 0), v[2]);
    return Values{h};
  });
  const auto scanned = with_gradients([&](std::span<const Value> v) {
    return Scan([&](std::span<const Value> a) { return Values{step(a[0], a[1], v[2])}; },
                Values{v[0]}, Values{v[1]});
  });
  const auto remat = with_gradients([&](std::span<const Value> v) {
    return Scan(
        [&](std::span<const Value> a) {
          return Remat([&](std::span<const Value> b) { return Values{step(b[0], b[1], v[2])}; }, a);
        },
        Values{v[0]}, Values{v[1]});
  });
  const auto chosen = with_gradients([&](std::span<const Value> v) {
    const Value zero = Constant(*v[0].graph(), 0, DType::kF32);
    return Scan(
        [&](std::span<const Value> a) {
          return Cond(
              Compare(ReduceSum(a[0] * a[0], {0, 1}), zero, Comparison::kGe),
              [&](std::span<const Value> b) { return Values{step(b[0], b[1], v[2])}; },
              [&](std::span<const Value> b) { return Values{b[0] * v[2]}; }, a);
        },
        Values{v[0]}, Values{v[1]});
  });
  for (const auto* other : {&scanned, &remat, &chosen}) {
    ASSERT_EQ(other->size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectNear((*other)[i], expected[i], 1e-4, "result " + std::to_string(i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomBodies, testing::Range(1, 4));

}  // namespace
}  // namespace forebay::xla
