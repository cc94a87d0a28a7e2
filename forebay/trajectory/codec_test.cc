// The binary form: what goes in comes out, and hostile bytes give an error, never a crash or a huge
// allocation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay {
namespace {

TEST(Codec, RandomTrajectoriesRoundTrip) {
  Rng rng(1);
  for (int i = 0; i < 500; ++i) {
    const Trajectory t = RandomTrajectory(rng);
    ASSERT_TRUE(Validate(t).ok()) << i;
    const std::string bytes = Encode(t);
    const Result<Trajectory> back = Decode(bytes);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, t);
    EXPECT_EQ(Encode(*back), bytes);  // one form
  }
}

TEST(Codec, SizeIsThatOfItsColumns) {
  const Trajectory t = SimpleTrajectory({.trajectory_id = 1}, 1, 1000, 1000);
  EXPECT_LT(Encode(t).size(), 2000 * 4 + 250 + 1000 * 4 + 400);
}

TEST(Codec, TruncationAtEveryByteIsDataLoss) {
  Rng rng(2);
  for (int i = 0; i < 20; ++i) {
    const std::string bytes = Encode(RandomTrajectory(rng, 60));
    for (size_t n = 0; n < bytes.size(); ++n) {
      const Result<Trajectory> cut = Decode(std::string_view(bytes).substr(0, n));
      ASSERT_FALSE(cut.ok()) << n;
      EXPECT_EQ(cut.status().code(), StatusCode::kDataLoss);
    }
    EXPECT_EQ(Decode(bytes + '\0').status().code(), StatusCode::kDataLoss);
  }
}

TEST(Codec, BitFlipsGiveAnErrorOrAValidTrajectory) {
  Rng rng(3);
  for (int i = 0; i < 10; ++i) {
    const std::string bytes = Encode(RandomTrajectory(rng, 60));
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      const Result<Trajectory> back = Decode(flipped);
      if (back.ok()) {
        EXPECT_TRUE(Validate(*back).ok());
      } else {
        EXPECT_EQ(back.status().code(), StatusCode::kDataLoss);
      }
    }
  }
}

TEST(Codec, HugeCountsAreRefusedBeforeAllocation) {
  const std::string good = Encode(SimpleTrajectory({.trajectory_id = 1}, 1));
  for (size_t field = 0; field < 5; ++field) {  // tokens, loss_tokens, versions, turns, rewards
    std::string bad = good;
    const uint32_t huge = 0xfffffff0U;
    std::memcpy(bad.data() + 8 + field * 4, &huge, sizeof huge);
    EXPECT_EQ(Decode(bad).status().code(), StatusCode::kDataLoss) << field;
  }
}

TEST(Codec, NamesAWrongFormat) {
  std::string bytes = Encode(SimpleTrajectory({.trajectory_id = 1}, 1));
  bytes[4] = 9;
  EXPECT_THAT(Decode(bytes).status().message(), testing::HasSubstr("format 9, this build reads 1"));
  EXPECT_THAT(Decode("hello world").status().message(), testing::HasSubstr("FBTR"));
}

TEST(Codec, PeeksAtTheIdOfADamagedEncoding) {
  const TrajectoryId id{
      .trajectory_id = 77, .group_id = 3, .member = 2, .attempt = 1, .task_id = -9};
  std::string bytes = Encode(SimpleTrajectory(id, 1));
  bytes.resize(70);
  EXPECT_EQ(PeekId(bytes), id);
  EXPECT_FALSE(PeekId(std::string_view(bytes).substr(0, 50)).has_value());
  EXPECT_FALSE(PeekId("").has_value());
}

TEST(CodecDeathTest, EncodeRefusesOurOwnBugs) {
  Trajectory t = SimpleTrajectory({.trajectory_id = 1}, 1);
  t.loss_mask.pop_back();
  EXPECT_DEATH(Encode(t), "columns differ in length");
}

TEST(Codec, ASummaryIsWhatTheWholeSays) {
  Rng rng(5);
  for (int i = 0; i < 300; ++i) {
    const Trajectory t = RandomTrajectory(rng);
    const std::string bytes = Encode(t);
    const auto summary = PeekSummary(bytes);
    ASSERT_TRUE(summary.has_value());
    EXPECT_EQ(summary->id, t.id);
    EXPECT_EQ(summary->outcome, t.outcome);
    EXPECT_EQ(summary->tokens, static_cast<int64_t>(t.tokens.size()));
    EXPECT_EQ(summary->loss_tokens, t.loss_tokens());
    EXPECT_EQ(summary->min_version, t.min_version());
    // Cut anywhere: nothing, or the same.
    for (size_t n = 0; n < bytes.size(); n += 1 + n / 8) {
      const auto cut = PeekSummary(std::string_view(bytes).substr(0, n));
      if (cut) {
        EXPECT_EQ(cut->min_version, t.min_version());
      }
    }
  }
  EXPECT_FALSE(PeekSummary(std::string(200, '\xff')).has_value());
}

}  // namespace
}  // namespace forebay
