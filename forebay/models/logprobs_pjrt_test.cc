// ChunkedLogprobs equals the plain log softmax, forward and backward, whatever the chunk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/models/model.h"
#include "forebay/models/program_testing.h"
#include "forebay/xla/ops.h"

namespace forebay::models {
namespace {

using xla::Value;

constexpr int64_t kCount = 53, kWidth = 12, kVocab = 97;

struct Inputs {
  std::vector<float> hidden, head, weights;
  std::vector<int32_t> targets;
};

Inputs RandomInputs() {
  Inputs inputs;
  Rng rng(5);
  for (int64_t i = 0; i < kCount * kWidth; ++i) {
    inputs.hidden.push_back(static_cast<float>(3 * rng.Normal()));
  }
  for (int64_t i = 0; i < kVocab * kWidth; ++i)
    inputs.head.push_back(static_cast<float>(rng.Normal()));
  for (int64_t i = 0; i < kCount; ++i) {
    inputs.weights.push_back(static_cast<float>(rng.Normal()));
    inputs.targets.push_back(static_cast<int32_t>(rng.Below(kVocab)));
  }
  return inputs;
}

// Log-probabilities, entropies, and the gradients of hidden and head of sum(weights * logprobs).
std::vector<std::vector<float>> Chunked(const Inputs& in, double temperature, int64_t chunk) {
  TestProgram program("chunked");
  const Value hidden = program.Input(F32({kCount, kWidth}, in.hidden));
  const Value head = program.Input(F32({kVocab, kWidth}, in.head));
  Value entropy;
  const Value logprobs = ChunkedLogprobs(hidden, head, program.Input(S32({kCount}, in.targets)),
                                         temperature, chunk, &entropy);
  const Value loss = xla::ReduceSum(logprobs * program.Input(F32({kCount}, in.weights)), {0});
  const Value wrt[] = {hidden, head};
  const auto gradients = xla::Gradients(loss, wrt);
  return program.Run({logprobs, entropy, gradients[0], gradients[1]});
}

std::vector<std::vector<float>> Plain(const Inputs& in, double temperature) {
  TestProgram program("plain");
  const Value hidden = program.Input(F32({kCount, kWidth}, in.hidden));
  const Value head = program.Input(F32({kVocab, kWidth}, in.head));
  const Value logits = xla::Linear(hidden, head) / temperature;
  const Value all = logits - xla::LogSumExp(logits, {-1}, true);
  const Value logprobs = xla::TakeAlongLast(all, program.Input(S32({kCount}, in.targets)));
  const Value entropy = -xla::ReduceSum(all * xla::Exp(all), {-1});
  const Value loss = xla::ReduceSum(logprobs * program.Input(F32({kCount}, in.weights)), {0});
  const Value wrt[] = {hidden, head};
  const auto gradients = xla::Gradients(loss, wrt);
  return program.Run({logprobs, entropy, gradients[0], gradients[1]});
}

// Chunks: one token (a scan of 53), a divisor of nothing (scanned and unrolled), all at once, more
// than all.
TEST(ChunkedLogprobsTest, EqualsThePlainForm) {
  const Inputs in = RandomInputs();
  for (const double temperature : {1.0, 0.6}) {
    const auto expected = Plain(in, temperature);
    for (const int64_t chunk : {1, 7, 20, 53, 64}) {
      const auto values = Chunked(in, temperature, chunk);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_LT(MaxDifference(values[i], expected[i]), 2e-5 * (1 + MaxMagnitude(expected[i])))
            << "result " << i << ", chunk " << chunk << ", temperature " << temperature;
      }
    }
  }
}

TEST(ChunkedLogprobsTest, LargeLogitsDoNotOverflow) {
  Inputs in = RandomInputs();
  for (float& x : in.hidden) x *= 1000;
  for (const int64_t chunk : {5, 30}) {
    for (const auto& values : Chunked(in, 1.0, chunk)) {
      for (const float x : values) ASSERT_TRUE(std::isfinite(x)) << "chunk " << chunk;
    }
  }
}

TEST(ChunkedLogprobsTest, N3_NegativeTargetsGiveZeroAndNoGradient) {
  Inputs in = RandomInputs();
  in.targets[3] = -1;
  in.targets[52] = std::numeric_limits<int32_t>::min();
  in.weights[3] = in.weights[52] = 0;
  for (const int64_t chunk : {5, 30}) {
    in.weights[3] = 0;
    const auto expected = Chunked(in, 1.0, chunk);
    in.weights[3] = std::numeric_limits<float>::quiet_NaN();
    const auto values = Chunked(in, 1.0, chunk);
    EXPECT_EQ(values[0][3], 0);
    EXPECT_EQ(values[0][52], 0);
    EXPECT_EQ(values[2], expected[2]);
    EXPECT_EQ(values[3], expected[3]);
  }
}

// The point of chunks: temporary memory follows the chunk, not the number of tokens.
TEST(ChunkedLogprobsTest, NeverHoldsAllLogits) {
  const auto temp_bytes = [](int64_t count, int64_t chunk) {
    xla::Graph graph("memory");
    const Value hidden = graph.Parameter({xla::DType::kF32, {count, 8}}, "hidden");
    const Value head = graph.Parameter({xla::DType::kF32, {4096, 8}}, "head");
    const Value targets = graph.Parameter({xla::DType::kS32, {count}}, "targets");
    const Value loss = xla::ReduceSum(ChunkedLogprobs(hidden, head, targets, 1.0, chunk), {0});
    const Value wrt[] = {hidden, head};
    const auto results = xla::Gradients(loss, wrt);
    const xla::Program program = graph.Finish(results).value();
    return TestClient().Compile(program).value()->memory().value().temp_bytes;
  };
  const int64_t all_logits = int64_t{2048} * 4096 * 4;
  EXPECT_LT(temp_bytes(2048, 64), all_logits / 4);     // 32 chunks, scanned
  EXPECT_LT(temp_bytes(2048, 512), all_logits * 0.6);  // 4 chunks, unrolled
}

TEST(ChunkedLogprobsTest, RefusesABadTemperatureOrChunk) {
  for (const auto& [temperature, chunk] : {std::pair{0.0, 4}, {-1.0, 4}, {1.0, 0}}) {
    xla::Graph graph("bad");
    const Value hidden = graph.Parameter({xla::DType::kF32, {4, 8}}, "hidden");
    const Value head = graph.Parameter({xla::DType::kF32, {16, 8}}, "head");
    const Value targets = graph.Parameter({xla::DType::kS32, {4}}, "targets");
    ChunkedLogprobs(hidden, head, targets, temperature, chunk);
    EXPECT_THAT(graph.status().message(), testing::HasSubstr("must be positive"));
  }
}

}  // namespace
}  // namespace forebay::models
