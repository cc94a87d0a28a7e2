// Goal: the weights of a batch do not depend on rows, and a batch without loss tokens weighs
// nothing.
#include "forebay/learner/token_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace forebay::learner {
namespace {

using ::testing::Each;

constexpr Aggregation kModes[] = {Aggregation::kTokenMean, Aggregation::kSequenceMeanOfTokenMean,
                                  Aggregation::kSequenceMeanOfTokenSum,
                                  Aggregation::kSequenceMeanTokenScale};

TEST(TokenWeights, N2_AllMaskedBatchWeighsNothingInEveryMode) {
  const std::vector<int64_t> counts = {0, 0, 0};
  for (const auto mode : kModes) {
    EXPECT_THAT(TokenWeights({.mode = mode}, counts), Each(0.0)) << AggregationName(mode);
    EXPECT_TRUE(TokenWeights({.mode = mode}, {}).empty());
  }
}

TEST(TokenWeights, N2_SequencesWithoutLossTokensAreInNeitherSum) {
  // Numerator and denominator use the same mask: the masked sequence changes nothing for the
  // others.
  for (const auto mode : kModes) {
    const auto with = TokenWeights({.mode = mode}, std::vector<int64_t>{3, 0, 5});
    const auto without = TokenWeights({.mode = mode}, std::vector<int64_t>{3, 5});
    EXPECT_EQ(with, (std::vector<double>{without[0], 0.0, without[1]})) << AggregationName(mode);
  }
}

TEST(TokenWeights, MeansSumToOne) {
  const std::vector<int64_t> counts = {3, 1, 8};
  for (const auto mode : {Aggregation::kTokenMean, Aggregation::kSequenceMeanOfTokenMean}) {
    const auto weights = TokenWeights({.mode = mode}, counts);
    double sum = 0;
    for (size_t i = 0; i < counts.size(); ++i) sum += weights[i] * static_cast<double>(counts[i]);
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(TokenWeights, NamesAndBadInput) {
  for (const auto mode : kModes) EXPECT_EQ(ParseAggregation(AggregationName(mode)), mode);
  EXPECT_EQ(ParseAggregation("token-mean"), std::nullopt);
  EXPECT_DEATH(TokenWeights({}, std::vector<int64_t>{-1}), "loss tokens");
}

}  // namespace
}  // namespace forebay::learner
