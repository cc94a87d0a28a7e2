// Goal: a decoupled run keeps its staleness promises: with bound 0 it is the synchronous loop, bit
// for bit; with a bound of 2 no older token is trained on; and it never compiles after warm-up.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/environment_setup.h"
#include "apps/model_setup.h"
#include "apps/room_options.h"
#include "apps/train_run.h"
#include "forebay/base/loop.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/config.h"
#include "forebay/control/coordinator.h"
#include "forebay/control/run_directory.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/learner.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"(
[run]
steps = 4
seed = 5
[model]
path = "tiny:"
tiny_width = 32
tiny_heads = 2
tiny_kv_heads = 1
tiny_ff = 64
[env]
name = "letters"
kind = "builtin"
builtin = "slow"
options = '{"turns_min": 1, "turns_max": 3, "latency_p50_s": 0.01, "latency_p99_s": 0.05}'
[rollout]
actors = 12
slots = 4
context = 256
tokens_max = 256
turns_max = 3
new_tokens_per_turn_max = 8
deterministic = true
[buffer]
durability = "os"
[learner]
groups_per_step = 3
group_size = 4
learning_rate = 1e-2
row_lengths = [256]
tokens_per_program = 512
[eval]
tasks = 0
)";

// Compiled programs of all runs here, which are the same ones: for the time that it saves.
const fs::path& Programs() {
  static const fs::path folder = fs::path(testing::TempDir()) / "forebay_whole_run_programs";
  return folder;
}

control::Config MakeConfig(std::vector<std::string> sets) {
  sets.insert(sets.begin(), "device.cache_dir=" + Programs().string());
  auto config = control::ParseConfig(kConfig, "test.toml", "/", sets);
  FB_CHECK(config.ok(), config.status().ToString());
  return std::move(config).value();
}

class WholeRunTest : public testing::Test {
 public:
  static void SetUpTestSuite() { fs::remove_all(Programs()); }
  static void TearDownTestSuite() { fs::remove_all(Programs()); }

 protected:
  WholeRunTest() : folder_((fs::path(testing::TempDir()) / "forebay_whole_run").string()) {
    fs::remove_all(folder_);
  }
  ~WholeRunTest() override { fs::remove_all(folder_); }

  RunReport Train(const control::Config& config, const std::string& name) {
    auto report = RunTraining(config, {.run = folder_ + "/" + name, .quiet = true});
    FB_CHECK(report.ok(), report.status().ToString());
    return std::move(report).value();
  }
  weights::TensorMap Weights(const std::string& name) {
    auto loaded = learner::LoadLatestCheckpoint(folder_ + "/" + name + "/checkpoints");
    FB_CHECK(loaded.ok(), loaded.status().ToString());
    return loaded->data.state.train.params;
  }

  // What metrics.jsonl says of each step.
  std::vector<double> OfSteps(const std::string& name, const std::string& field) {
    std::ifstream in(folder_ + "/" + name + "/metrics.jsonl");
    std::vector<double> values;
    for (std::string line; std::getline(in, line);) {
      values.push_back(nlohmann::json::parse(line).at(field).get<double>());
    }
    return values;
  }

  std::string folder_;
};

// The synchronous loop as one would write it first: play a batch, one episode after another, train,
// publish, repeat.
class PlainLoop {
 public:
  PlainLoop(const control::Config& config, const std::string& folder)
      : config_(config), loop_(MakeLoop()) {
    auto run = control::RunDirectory::Open(folder, control::OpenMode::kNew);
    FB_CHECK(run.ok(), run.status().ToString());
    model_ = Value(LoadModel(config));
    client_ = Value(xla::Client::Create({.plugin_path = Value(xla::FindPlugin(""))}));
    learner::LearnerState start;
    start.train.params = model_.initial;
    learner_ = Value(learner::Learner::Create(
        MakeLearnerOptions(config, (*run)->checkpoints_path()), *client_, *model_.model, start));
    engine_ = Value(rollout::MakeXlaEngine(MakeEngineOptions(config), *client_, model_.model,
                                           *learner_->snapshot()));
    environments_ = Value(MakeEnvironment(config, "", *loop_, nullptr));
    buffer::Recovery recovery;
    buffer_ =
        Value(buffer::Buffer::Open({.durability = buffer::Durability::kMemory,
                                    .group_size = static_cast<int32_t>(config.learner.group_size),
                                    .max_staleness = 0},
                                   0, {}, &recovery));
    coordinator_ = std::make_unique<control::Coordinator>(MakeCoordinatorOptions(config),
                                                          buffer_.get(), recovery);
  }

  weights::TensorMap Run() {
    for (int64_t version = 0; version < config_.run.steps; ++version) {
      for (int64_t i = 0; i < config_.learner.groups_per_step * config_.learner.group_size; ++i) {
        Play(*Value(coordinator_->TryNext()));
      }
      const buffer::Batch batch = Value(buffer_->Lease(config_.learner.groups_per_step, version,
                                                       Now() + std::chrono::seconds(10)));
      FB_CHECK(learner_->Step(batch).ok(), "a step");
      FB_CHECK(buffer_->MarkTrained(batch.sequence).ok(), "trained");
      Publish();
      coordinator_->OnPublished(version + 1, buffer_->ledger().trained);
    }
    return Value(learner_->State()).train.params;
  }

 private:
  template <typename T>
  static T Value(Result<T> result) {
    FB_CHECK(result.ok(), result.status().ToString());
    return std::move(result).value();
  }

  Task<void> PlayTask(Assignment assignment) {
    rollout::EpisodeOptions options;
    options.environment = config_.env.name;
    options.temperature = config_.rollout.temperature;
    options.turns_max = static_cast<int32_t>(config_.rollout.turns_max);
    options.new_tokens_per_turn_max = static_cast<int32_t>(config_.rollout.new_tokens_per_turn_max);
    options.tokens_max = static_cast<int32_t>(config_.rollout.tokens_max);
    options.stop_tokens = model_.stop_tokens;
    Trajectory t = co_await rollout::RunEpisode(*loop_, *engine_, *environments_, *model_.tokenizer,
                                                *model_.chat, options, assignment, nullptr);
    buffer_->Append(std::move(t), Now() + std::chrono::seconds(10),
                    [](const Status& s) { FB_CHECK(s.ok(), s.ToString()); });
  }
  void Play(const Assignment& assignment) {
    loop_->Spawn(PlayTask(assignment), [this] { loop_->Stop(); });
    loop_->Run();
  }
  void Publish() {
    loop_->Post([this] {
      engine_->Publish(learner_->snapshot(), [this](const Status& s) {
        FB_CHECK(s.ok(), s.ToString());
        loop_->Stop();
      });
    });
    loop_->Run();
  }

  const control::Config config_;
  std::unique_ptr<Loop> loop_;
  LoadedModel model_;
  std::unique_ptr<xla::Client> client_;
  std::unique_ptr<learner::Learner> learner_;
  std::unique_ptr<rollout::Engine> engine_;
  std::unique_ptr<env::EnvironmentPool> environments_;
  std::unique_ptr<buffer::Buffer> buffer_;
  std::unique_ptr<control::Coordinator> coordinator_;
};

TEST_F(WholeRunTest, ZeroStalenessEqualsThePlainSynchronousLoopBitForBit) {
  const control::Config config = MakeConfig({"buffer.max_staleness=0"});
  const weights::TensorMap plain = PlainLoop(config, folder_ + "/plain").Run();
  const RunReport decoupled = Train(config, "decoupled");
  EXPECT_EQ(decoupled.max_staleness_trained(), 0);
  EXPECT_EQ(weights::Digest(Weights("decoupled")), weights::Digest(plain));
  // And training did something, or equality would mean nothing.
  const LoadedModel model = std::move(LoadModel(config)).value();
  EXPECT_NE(weights::Digest(plain), weights::Digest(model.initial));

  const RunReport sync = Train(MakeConfig({"run.mode=sync", "buffer.max_staleness=4"}), "sync");
  EXPECT_EQ(sync.max_staleness_trained(), 0);
  EXPECT_EQ(weights::Digest(Weights("sync")), weights::Digest(plain));
}

TEST_F(WholeRunTest, NoTokenOlderThanTheBoundIsTrained) {
  // Without the folder: what comes out of it is not counted as compiled.
  const RunReport report = Train(MakeConfig({"device.cache_dir=", "buffer.max_staleness=2",
                                             "run.steps=20", "rollout.actors=36"}),
                                 "bound");
  EXPECT_EQ(report.steps, 20);
  EXPECT_LE(report.max_staleness_trained(), 2);
  EXPECT_GT(report.max_staleness_trained(), 0)
      << "the run was not decoupled at all: the bound was not tested";
  EXPECT_TRUE(report.ledger.balanced());
  EXPECT_EQ(report.compiles_after_warmup, 0);
  EXPECT_EQ(report.trained_episodes, 20 * 12);
}

TEST_F(WholeRunTest, L6_EvictionNeverStopsARun) {
  // Publication slower than an episode and no slack: elsewhere everything was evicted for ever.
  const RunReport report =
      Train(MakeConfig({"buffer.max_staleness=0", "rollout.actors=100", "run.steps=6"}), "tight");
  EXPECT_EQ(report.steps, 6);
  EXPECT_TRUE(report.ledger.balanced());
}

TEST_F(WholeRunTest, T4_WithoutLearningTheLogprobGapOfAWholeRunStaysFlat) {
  // Stale, packed, over many publications and reused prefixes: none may move a log-probability.
  Train(MakeConfig({"learner.learning_rate=0", "learner.skip_zero_advantage=false", "run.steps=24",
                    "rollout.actors=36"}),
        "soak");
  const std::vector<double> gaps = OfSteps("soak", "logprob_gap_max");
  ASSERT_EQ(gaps.size(), 24U);
  // One unit in the last place of a log-probability here; 0 in some steps, but not in all.
  for (const double gap : gaps) EXPECT_LE(gap, 1e-5);
  EXPECT_GT(std::ranges::max(gaps), 0) << "nothing was compared";
}

}  // namespace
}  // namespace forebay::apps
