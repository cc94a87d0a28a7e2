// Goal: packing keeps every token of every sequence, never overlaps, and lays out targets within
// segments.
#include "forebay/learner/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;

TEST(Packing, T5_EverySequenceIsPlacedOnceWithoutOverlap) {
  Rng rng(17);
  for (int round = 0; round < 200; ++round) {
    const auto row_tokens = static_cast<int64_t>(1 + rng.Below(200));
    std::vector<int64_t> lengths(rng.Below(60));
    for (auto& n : lengths) {
      n = static_cast<int64_t>(1 + rng.Below(static_cast<uint64_t>(row_tokens)));
    }
    const auto rows = PackRows(lengths, row_tokens);
    ASSERT_TRUE(rows.ok());
    std::vector<int> seen(lengths.size(), 0);
    for (const Row& row : *rows) {
      ASSERT_FALSE(row.empty());
      int64_t end = 0;
      for (const Placement& p : row) {
        EXPECT_EQ(p.begin, end);  // gapless, left to right
        end += lengths[static_cast<size_t>(p.sequence)];
        ++seen[static_cast<size_t>(p.sequence)];
      }
      EXPECT_LE(end, row_tokens);
    }
    EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
    // Two rows that are both at most half full would have been one.
    const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    EXPECT_LE(static_cast<int64_t>(rows->size()), 2 * total / row_tokens + 1);
  }
}

TEST(Packing, IsDeterministicAndPrefersTheTightestRow) {
  const std::vector<int64_t> lengths = {5, 3, 7, 5, 2};
  const auto rows = PackRows(lengths, 10);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(*rows, (std::vector<Row>{{{2, 0}, {1, 7}}, {{0, 0}, {3, 5}}, {{4, 0}}}));
}

TEST(Packing, RefusesWhatDoesNotFitInsteadOfCuttingIt) {
  const auto rows = PackRows(std::vector<int64_t>{4, 11}, 10);
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(rows.status().message(), HasSubstr("sequence 1 has 11 tokens"));
  EXPECT_FALSE(PackRows(std::vector<int64_t>{0}, 10).ok());
  EXPECT_TRUE(PackRows({}, 10)->empty());
}

struct Columns {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  std::vector<float> logprobs;
};

TEST(MicroBatch, T5_MultiTurnSequencesKeepEveryTokenAndTargetsStayInTheirSegment) {
  // prompt 2, action 2, observation 2, action 1
  const Columns a{{10, 11, 12, 13, 14, 15, 16}, {0, 0, 1, 1, 0, 0, 1}, {0, 0, -1, -2, 0, 0, -3}};
  const Columns b{{20, 21}, {0, 1}, {0, -4}};
  const std::vector<TrainSequence> sequences = {{a.tokens, a.mask, a.logprobs, 2.0, 0.5, 1.0},
                                                {b.tokens, b.mask, b.logprobs, -1.0, 0.25, 2.0}};
  const std::vector<Row> rows = {{{0, 0}, {1, 7}}};
  const MicroBatch batch = FillMicroBatch(rows, sequences, {2, 10});
  EXPECT_EQ(batch.real_tokens, 9);
  EXPECT_EQ(batch.loss_tokens, 4);
  const auto first_row = [&](auto plane) { return std::vector(plane.begin(), plane.begin() + 10); };
  EXPECT_EQ(first_row(batch.plane(kTokens)),
            (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 20, 21, 0}));
  EXPECT_EQ(first_row(batch.plane(kTargets)),
            (std::vector<int32_t>{11, 12, 13, 14, 15, 16, 0, 21, 0, 0}));
  EXPECT_EQ(first_row(batch.plane(kSegments)),
            (std::vector<int32_t>{1, 1, 1, 1, 1, 1, 1, 2, 2, 0}));
  EXPECT_EQ(first_row(batch.plane(kPositions)),
            (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 0, 1, 0}));
  EXPECT_EQ(first_row(batch.plane(kWeights)),
            (std::vector<float>{0, 0.5, 0.5, 0, 0, 0.5, 0, 0.25, 0, 0}));
  EXPECT_EQ(first_row(batch.plane(kAdvantages)),
            (std::vector<float>{0, 2, 2, 0, 0, 2, 0, -1, 0, 0}));
  EXPECT_EQ(first_row(batch.plane(kRolloutLogprobs)),
            (std::vector<float>{0, -1, -2, 0, 0, -3, 0, -4, 0, 0}));
  EXPECT_EQ(first_row(batch.plane(kInverseTemperature)),
            (std::vector<float>{1, 1, 1, 1, 1, 1, 1, 0.5, 0.5, 0}));
  for (size_t t = 10; t < 20; ++t) {  // the row that nothing is in
    EXPECT_EQ(batch.plane(kSegments)[t], 0);
    EXPECT_EQ(batch.plane(kWeights)[t], 0);
  }
}

TEST(MicroBatch, ALossTokenThatNothingPredictsTakesNoPart) {
  const Columns a{{10, 11}, {1, 1}, {-1, -1}};
  EXPECT_EQ(TrainableTokens(a.mask), 1);
  const std::vector<TrainSequence> sequences = {{a.tokens, a.mask, a.logprobs, 1, 1, 1}};
  EXPECT_EQ(FillMicroBatch(std::vector<Row>{{{0, 0}}}, sequences, {1, 4}).loss_tokens, 1);
  EXPECT_EQ(TrainableTokens({}), 0);
}

TEST(MicroBatchDeathTest, RowsMustFit) {
  const Columns a{{10, 11, 12}, {0, 1, 1}, {0, -1, -1}};
  const std::vector<TrainSequence> sequences = {{a.tokens, a.mask, a.logprobs, 1, 1, 1}};
  EXPECT_DEATH(FillMicroBatch(std::vector<Row>{{{0, 2}}}, sequences, {1, 4}), "leaves its row");
  EXPECT_DEATH(FillMicroBatch(std::vector<Row>{{}, {}}, sequences, {1, 4}), "too many rows");
}

}  // namespace
}  // namespace forebay::learner
