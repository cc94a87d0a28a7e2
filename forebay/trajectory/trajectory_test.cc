// What a trajectory says about itself, and what Validate refuses.
#include "forebay/trajectory/trajectory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay {
namespace {

TEST(Outcome, NamesRoundTripAndAreDistinct) {
  std::set<std::string_view> names;
  for (int i = 0; i < kOutcomes; ++i) {
    const auto outcome = static_cast<Outcome>(i);
    names.insert(OutcomeName(outcome));
    EXPECT_EQ(ParseOutcome(OutcomeName(outcome)), outcome);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kOutcomes));
  EXPECT_EQ(OutcomeName(Outcome::kTruncatedTokens), "truncated_tokens");
  EXPECT_EQ(OutcomeName(Outcome::kGraderError), "grader_error");
  EXPECT_FALSE(ParseOutcome("Done").has_value());
  EXPECT_FALSE(ParseOutcome("").has_value());
}

TEST(Outcome, B2_InfrastructureFailuresNeverTrain) {
  for (int i = 0; i < kOutcomes; ++i) {
    EXPECT_EQ(Trains(static_cast<Outcome>(i)), i <= static_cast<int>(Outcome::kPolicyTimeout)) << i;
  }
}

TEST(Trajectory, SumsAndVersions) {
  Trajectory t = SimpleTrajectory({.trajectory_id = 3}, 7, 4, 8);
  EXPECT_EQ(t.loss_tokens(), 8);
  EXPECT_EQ(t.min_version(), 7);
  t.versions = {{9, 3}, {6, 5}};
  EXPECT_EQ(t.min_version(), 6);
  EXPECT_EQ(t.max_version(), 9);
  t.rewards = {{"a", 0.25}, {"b", -1.0}};
  EXPECT_DOUBLE_EQ(t.reward(), -0.75);
  const Trajectory empty;
  EXPECT_EQ(empty.min_version(), -1);
  EXPECT_EQ(empty.max_version(), -1);
  EXPECT_EQ(empty.loss_tokens(), 0);
  EXPECT_TRUE(Validate(empty).ok());
}

TEST(Trajectory, BranchesBeginWithAPromptTurn) {
  Trajectory t;
  EXPECT_EQ(Branches(t), (std::vector<TokenRange>{{0, 0}}));
  t.tokens.resize(10);
  EXPECT_EQ(Branches(t), (std::vector<TokenRange>{{0, 10}}));
  t.turns = {{.kind = TurnKind::kPrompt, .begin = 0, .end = 2},
             {.kind = TurnKind::kAction, .begin = 2, .end = 4},
             {.kind = TurnKind::kObservation, .begin = 4, .end = 5},
             {.kind = TurnKind::kPrompt, .begin = 5, .end = 5},  // of nothing
             {.kind = TurnKind::kPrompt, .begin = 6, .end = 9},
             {.kind = TurnKind::kAction, .begin = 9, .end = 10}};
  EXPECT_EQ(Branches(t), (std::vector<TokenRange>{{0, 6}, {6, 10}}));
}

TEST(Validate, NamesWhatIsWrong) {
  struct Case {
    std::function<void(Trajectory&)> spoil;
    std::string says;
  };
  const std::vector<Case> cases = {
      {[](Trajectory& t) { t.tokens.pop_back(); }, "columns differ in length: 11 tokens"},
      {[](Trajectory& t) { t.loss_mask.push_back(0); }, "columns differ in length"},
      {[](Trajectory& t) { t.rollout_logprobs.clear(); }, "columns differ in length"},
      {[](Trajectory& t) { t.tokens[5] = -1; }, "token 5 is -1"},
      {[](Trajectory& t) { t.loss_mask[4] = 2; }, "loss_mask of token 4 is 2"},
      {[](Trajectory& t) { t.rollout_logprobs[6] = std::numeric_limits<float>::quiet_NaN(); },
       "rollout_logprob of token 6 is not finite"},
      {[](Trajectory& t) { t.rollout_logprobs[0] = -1; }, "token 0 was not sampled"},
      {[](Trajectory& t) { t.versions[0].tokens = 7; }, "version runs cover 7 tokens of 8"},
      {[](Trajectory& t) { t.versions.push_back({1, 0}); }, "version run of 0 tokens"},
      {[](Trajectory& t) { t.versions[0].policy_version = -1; }, "policy_version -1"},
      {[](Trajectory& t) { t.turns[1].begin = 3; }, "turn 1 is [3, 12)"},
      {[](Trajectory& t) { t.turns[1].end = 13; }, "turn 1 is [4, 13)"},
      {[](Trajectory& t) { t.turns[0].end = -1; }, "turn 0 is [0, -1)"},
      {[](Trajectory& t) { t.turns[0].kind = static_cast<TurnKind>(3); }, "kind 3"},
      {[](Trajectory& t) { t.rewards["x"] = std::numeric_limits<double>::infinity(); },
       "reward 'x' is not finite"},
      {[](Trajectory& t) { t.rewards["x"] = -1e300; }, "reward 'x' = -1e+300 is beyond +-1e+30"},
      {[](Trajectory& t) { t.temperature = std::numeric_limits<double>::quiet_NaN(); },
       "temperature"},
      {[](Trajectory& t) { t.temperature = -1; }, "temperature -1"},
      {[](Trajectory& t) { t.outcome = static_cast<Outcome>(9); }, "outcome 9"},
      {[](Trajectory& t) { t.id.group_id = -5; }, "group -5"},
      {[](Trajectory& t) { t.environment.assign(70000, 'x'); }, "name is longer"},
  };
  const Trajectory good = SimpleTrajectory({.trajectory_id = 1}, 2, 4, 8);
  ASSERT_TRUE(Validate(good).ok());
  for (const Case& c : cases) {
    Trajectory bad = good;
    c.spoil(bad);
    const Status status = Validate(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.says;
    EXPECT_THAT(status.message(), testing::HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace forebay
