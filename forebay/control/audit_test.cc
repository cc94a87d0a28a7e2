// Goal: the report says what the run directory says, and survives broken lines.
#include "forebay/control/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "forebay/control/run_directory.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::control {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class AuditTest : public testing::Test {
 protected:
  AuditTest() : folder_((fs::path(testing::TempDir()) / "forebay_audit_test").string()) {
    fs::remove_all(folder_);
  }
  ~AuditTest() override { fs::remove_all(folder_); }
  std::string folder_;
};

Trajectory Episode(int64_t id, int64_t environment_us) {
  Trajectory t;
  t.id.trajectory_id = id;
  t.environment = "calc";
  t.tokens = {1, 2, 3};
  t.loss_mask = {0, 1, 1};
  t.rollout_logprobs = {0, -1, -1};
  t.versions = {{3, 2}};
  t.turns = {{.kind = TurnKind::kPrompt, .begin = 0, .end = 1},
             {.kind = TurnKind::kAction,
              .begin = 1,
              .end = 3,
              .spans = {.queue_us = 100'000,
                        .prefill_us = 0,
                        .decode_us = 400'000,
                        .environment_us = environment_us,
                        .reward_us = 0},
              .tool = "check"}};
  t.rewards = {{"correct", 1.0}};
  t.started_us = 1'000'000;
  t.ended_us = 1'000'000 + 500'000 + environment_us;
  return t;
}

TEST_F(AuditTest, PercentilesAreNearestRank) {
  const Percentiles p = ComputePercentiles({4, 1, 3, 2});
  EXPECT_EQ(p.count, 4);
  EXPECT_EQ(p.p50, 2);
  EXPECT_EQ(p.p90, 4);
  EXPECT_EQ(p.mean, 2.5);
  EXPECT_EQ(ComputePercentiles({}).count, 0);
}

TEST_F(AuditTest, SumsUpARun) {
  {
    auto run = RunDirectory::Open(folder_, OpenMode::kNew);
    ASSERT_TRUE(run.ok()) << run.status().ToString();
    for (int i = 1; i <= 10; ++i)
      (*run)->WriteTrajectory(TrajectoryLine(Episode(i, i * 1'000'000)));
    // Step 1 is repeated after a resume: its last line counts.
    (*run)->WriteMetrics(R"({"step":1,"wall_s":99,"busy_s":99,"lease_wait_s":0,"episodes":99})");
    (*run)->WriteMetrics(
        R"({"step":1,"wall_s":4,"busy_s":3,"lease_wait_s":0.5,"dispatch_gap_s":0.2,"episodes":5,"tokens":90,"padded_tokens":100,"actors":4,"ready_groups":2,"pending":9,"staleness":{"0":3,"2":2}})");
    (*run)->WriteMetrics(
        R"({"step":2,"wall_s":4,"busy_s":3,"lease_wait_s":0.5,"episodes":5,"tokens":90,"padded_tokens":100,"actors":4,"ready_groups":4,"pending":9,"control_lag_max_s":2.5,"staleness":{"1":5}})");
    EXPECT_TRUE((*run)->status().ok());
  }
  const Result<AuditReport> report = Audit(folder_);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->episodes, 10);
  EXPECT_EQ(report->trained_episodes, 10);
  EXPECT_EQ(report->steps, 2);
  EXPECT_DOUBLE_EQ(report->utilization, 0.75);
  EXPECT_DOUBLE_EQ(report->learner_share.at("dispatch_gap"), 0.2 / 8);
  EXPECT_DOUBLE_EQ(report->learner_share.at("other"), 0.8 / 8);
  EXPECT_NEAR(report->padding_waste, 0.1, 1e-12);
  EXPECT_EQ(report->step_seconds_of.at("calc").all.p50, 5);
  EXPECT_EQ(report->step_seconds_of.at("calc").by_tool.at("check").max, 10);
  EXPECT_EQ(report->environment_seconds.max, 10);
  EXPECT_EQ(report->call_seconds.count, 10);
  EXPECT_DOUBLE_EQ(report->call_seconds.p50, 0.5);
  EXPECT_THAT(FormatAudit(*report), HasSubstr("seconds of a call of the policy"));
  EXPECT_EQ(report->staleness.max, 2);
  EXPECT_EQ(report->outcomes.at("done"), 10);
  EXPECT_NEAR(report->share.at("environment"), 55.0 / 60.0, 1e-9);
  EXPECT_EQ(report->sizing.actors_needed, 12);  // 5 episodes every 3 s, 6 s each, 20 % to spare
  // L8: the control loop's lag is a metric with an alarm.
  EXPECT_EQ(report->control_lag_seconds.max, 2.5);
  EXPECT_THAT(report->notes, ElementsAre(HasSubstr("ran up to 2.5 s late")));
  EXPECT_THAT(FormatAudit(*report), HasSubstr("Actors that keep it busy: 12"));
  EXPECT_THAT(AuditJson(*report), HasSubstr("\"utilization\":0.75"));
}

// A reader must neither add a tool to its environment nor miss the steps without one.
TEST_F(AuditTest, StepsByToolAreSetInBelowTheirEnvironmentAndAddUpToIt) {
  {
    const auto run = RunDirectory::Open(folder_, OpenMode::kNew).value();
    for (int i = 1; i <= 6; ++i) {
      Trajectory t = Episode(i, i * 1'000'000);
      t.environment = i < 6 ? "calc" : "calc-plain";  // sorts between "calc" and "calc/..."
      t.turns[1].tool = i <= 2 ? "check" : i == 3 ? "other" : "";
      run->WriteTrajectory(TrajectoryLine(t));
    }
  }
  const AuditReport report = Audit(folder_).value();
  const StepSeconds& calc = report.step_seconds_of.at("calc");
  EXPECT_EQ(calc.all.count, 5);
  EXPECT_EQ(calc.by_tool.at("check").count, 2);
  EXPECT_EQ(calc.by_tool.at("other").count, 1);
  EXPECT_EQ(calc.by_tool.at("").count, 2);
  EXPECT_TRUE(report.step_seconds_of.at("calc-plain").by_tool.empty());
  EXPECT_THAT(FormatAudit(report),
              ContainsRegex("\n  calc  +5 .*\n    of them without a tool +2 .*\n    of them with "
                            "check +2 .*\n    of them with other +1 .*\n  calc-plain +1 "));
  EXPECT_THAT(AuditJson(report), HasSubstr("\"by_tool\":{\"\":{"));
}

TEST_F(AuditTest, BrokenLinesAreCountedNotFatal) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/trajectories.jsonl") << "{\"environment\":3}\nnot json\n{\"trunc\n"
                                                 << TrajectoryLine(Episode(1, 5)) << "\n";
  std::ofstream(folder_ + "/metrics.jsonl") << "[]\n{\"step\":\"x\"}\n";
  const Result<AuditReport> report = Audit(folder_);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->episodes, 1);
  EXPECT_EQ(report->notes.size(), 2u);
  std::ofstream(folder_ + "/metrics.jsonl") << "{\"step\":1,\"wall_s\":\"x\"}\n";
  EXPECT_EQ(Audit(folder_).status().code(), StatusCode::kDataLoss);
}

// The lines of a run whose wall clock was set back, of a version that took both times from it.
TEST_F(AuditTest, EpisodesThatEndBeforeTheyBeganLastAsLongAsTheirTurns) {
  {
    const auto run = RunDirectory::Open(folder_, OpenMode::kNew).value();
    for (int i = 1; i <= 2; ++i) {
      Trajectory t = Episode(i, 2'000'000);
      if (i == 2) t.ended_us -= 10'800'000'000;
      run->WriteTrajectory(TrajectoryLine(t));
    }
  }
  const AuditReport report = Audit(folder_).value();
  EXPECT_DOUBLE_EQ(report.episode_seconds.mean, 2.5);
  EXPECT_NEAR(report.share.at("environment"), 2.0 / 2.5, 1e-9);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("1 episodes end before they begin")));
}

TEST_F(AuditTest, ColumnsNeverTouch) {
  {
    const auto run = RunDirectory::Open(folder_, OpenMode::kNew).value();
    Trajectory t = Episode(1, 266'400'000'000);
    t.environment = std::string(60, 'e');
    run->WriteTrajectory(TrajectoryLine(t));
  }
  const std::string text = FormatAudit(Audit(folder_).value());
  EXPECT_THAT(text, HasSubstr("266400.000 266400.000"));
  EXPECT_THAT(text, HasSubstr("266400.500 266400.500"));
  EXPECT_THAT(text, HasSubstr(std::string(60, 'e') + "       1"));
}

TEST_F(AuditTest, ARunWithoutAStepSaysSoInsteadOfZeros) {
  fs::create_directories(folder_);
  for (const char* name : {"/metrics.jsonl", "/trajectories.jsonl"}) {
    const std::ofstream empty(folder_ + name);
    ASSERT_TRUE(empty.is_open());
  }
  std::string text = FormatAudit(Audit(folder_).value());
  EXPECT_THAT(text, HasSubstr("No step was trained, and no episode was played"));
  EXPECT_THAT(text, Not(HasSubstr("0.0")));
  {
    const auto run = RunDirectory::Open(folder_, OpenMode::kNew).value();
    run->WriteTrajectory(TrajectoryLine(Episode(1, 2'000'000)));
  }
  text = FormatAudit(Audit(folder_).value());
  EXPECT_THAT(text, HasSubstr("No step was trained: 1 episodes were played"));
  EXPECT_THAT(text, HasSubstr("  of them with check "));
  EXPECT_THAT(text, Not(HasSubstr("learner's time")));
}

TEST_F(AuditTest, ARunThatIsNotThere) {
  EXPECT_EQ(Audit(folder_ + "/none").status().code(), StatusCode::kNotFound);
}

TEST_F(AuditTest, RunDirectoriesAreNotOverwrittenByAccident) {
  ASSERT_TRUE(RunDirectory::Open(folder_, OpenMode::kNew).ok());
  std::ofstream(folder_ + "/config.toml") << "x";
  std::ofstream(folder_ + "/mine.txt") << "x";
  EXPECT_EQ(RunDirectory::Open(folder_, OpenMode::kNew).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(RunDirectory::Open(folder_, OpenMode::kResume).ok());
  EXPECT_TRUE(RunDirectory::Open(folder_, OpenMode::kOverwrite).ok());
  EXPECT_FALSE(fs::exists(folder_ + "/config.toml"));
  EXPECT_TRUE(fs::exists(folder_ + "/mine.txt"));  // not ours: kept
  EXPECT_EQ(RunDirectory::Open(folder_, OpenMode::kResume).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace forebay::control
