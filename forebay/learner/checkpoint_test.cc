// Goal: a checkpoint is whole or not there; corruption is named and the newest whole one is used.
#include "forebay/learner/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/learner/checkpoint_writer.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/manifest.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/schedule.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

weights::HostTensor Tensor(std::vector<float> values) {
  std::span<std::byte> bytes;
  auto tensor = weights::HostTensor::Allocate(
      {xla::DType::kF32, {static_cast<int64_t>(values.size())}}, &bytes);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return tensor;
}

CheckpointData Data(int64_t step) {
  const auto x = static_cast<float>(step);
  CheckpointData data;
  data.state.train.params = {{"a.weight", Tensor({x, 1, 2})}, {"b.weight", Tensor({-x})}};
  data.state.train.optimizer = {{"m.a.weight", Tensor({3, x, 4})},
                                {"m.b.weight", Tensor({5})},
                                {"v.a.weight", Tensor({6, 7, x})},
                                {"v.b.weight", Tensor({8})}};
  data.state.train.updates = step - 1;
  data.state.step = step;
  data.state.policy_version = step + 2;
  data.state.committed_batch = step + 5;
  data.schedule = {
      .kind = ScheduleKind::kCosine, .learning_rate = 1.0 / 3, .warmup_steps = 2, .total_steps = 9};
  data.seed = 77;
  data.config_hash = "abc";
  data.app_state = R"({"episodes":12})";
  return data;
}

class Checkpoint : public ::testing::Test {
 protected:
  ~Checkpoint() override { fs::remove_all(folder_); }
  std::vector<std::string> Entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  // Flips one byte in the middle of a file.
  void Damage(const std::string& name) const {
    const std::string path = folder_ + "/" + name;
    auto content = ReadFile(path);
    ASSERT_TRUE(content.ok());
    (*content)[content->size() - 2] = static_cast<char>((*content)[content->size() - 2] ^ 0x10);
    std::ofstream(path, std::ios::binary) << *content;
  }

  std::string folder_ = MakeTestFolder();
};

TEST_F(Checkpoint, RoundTripKeepsEverything) {
  const CheckpointData want = Data(4);
  ASSERT_TRUE(WriteCheckpoint(folder_, want, 2).ok());
  EXPECT_THAT(Entries(), ElementsAre("latest", "step_000004"));
  const auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_THAT(loaded->notes, IsEmpty());
  const CheckpointData& got = loaded->data;
  EXPECT_EQ(weights::Digest(got.state.train.params), weights::Digest(want.state.train.params));
  EXPECT_EQ(weights::Digest(got.state.train.optimizer),
            weights::Digest(want.state.train.optimizer));
  EXPECT_EQ(got.state.train.updates, 3);
  EXPECT_EQ(got.state.step, 4);
  EXPECT_EQ(got.state.policy_version, 6);
  EXPECT_EQ(got.state.committed_batch, 9);
  EXPECT_EQ(got.seed, 77);
  EXPECT_EQ(got.config_hash, "abc");
  EXPECT_EQ(got.app_state, want.app_state);
}

TEST_F(Checkpoint, TheFormatOfTheOptimizersStateIsKnown) {
  ASSERT_TRUE(WriteCheckpoint(folder_, Data(4), 2).ok());
  const std::string path = folder_ + "/step_000004/manifest.json";
  const std::string text = ReadFile(path).value();
  const std::string key = "\"optimizer_format\": 2";
  const size_t at = text.find(key);
  ASSERT_NE(at, text.npos);
  EXPECT_EQ(ParseManifest(text)->data.state.train.optimizer_format, kOptimizerStateFormat);
  // Earlier builds did not write it; a later one may write another.
  std::string earlier = text, later = text;
  earlier.erase(at, key.size() + 1);
  EXPECT_EQ(ParseManifest(earlier)->data.state.train.optimizer_format, 1);
  later.replace(at, key.size(), "\"optimizer_format\": 3");
  EXPECT_EQ(ParseManifest(later).status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(ParseManifest(later).status().message(), HasSubstr("optimizer_format 3"));
}

TEST_F(Checkpoint, TheBaseOfAdaptersIsWrittenOnceForAllSteps) {
  CheckpointData data = Data(1);
  data.lora = {.rank = 1};
  const weights::TensorMap base = data.state.train.params;
  const std::string file = "base_" + weights::Digest(base) + ".safetensors";
  std::string digest;
  fs::file_time_type written;
  for (int64_t step = 1; step <= 3; ++step) {
    data.state.step = step;
    data.state.train.adapters = {{"a.lora_A.weight", Tensor({static_cast<float>(step)})}};
    ASSERT_TRUE(WriteCheckpoint(folder_, data, 2, &digest).ok());
    if (step == 1) written = fs::last_write_time(folder_ + "/" + file);
  }
  EXPECT_EQ(digest, weights::Digest(base));
  EXPECT_THAT(Entries(), ElementsAre(file, "latest", "step_000002", "step_000003"));
  EXPECT_EQ(fs::last_write_time(folder_ + "/" + file), written);
  EXPECT_FALSE(fs::exists(folder_ + "/step_000003/model.safetensors"));
  const auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(weights::Digest(loaded->data.state.train.params), weights::Digest(base));

  EXPECT_TRUE(CheckBase(loaded->data.state.train, base).ok());
  const Status other = CheckBase(loaded->data.state.train, Data(7).state.train.params);
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr("model.path"));
  EXPECT_TRUE(CheckBase(Data(2).state.train, base).ok());  // without adapters

  // Another base in its place is refused, and so is none.
  ASSERT_TRUE(weights::WriteSafetensors(folder_ + "/" + file, Data(7).state.train.params).ok());
  EXPECT_EQ(LoadLatestCheckpoint(folder_).status().code(), StatusCode::kDataLoss);
  fs::remove(folder_ + "/" + file);
  EXPECT_EQ(LoadLatestCheckpoint(folder_).status().code(), StatusCode::kDataLoss);
}

TEST_F(Checkpoint, ADamagedBaseIsReplacedByTheModelAndWrittenAnew) {
  CheckpointData data = Data(1);
  data.lora = {.rank = 1};
  data.state.train.adapters = {{"a.lora_A.weight", Tensor({1})}};
  const weights::TensorMap base = data.state.train.params, other = Data(7).state.train.params;
  const std::string file = "base_" + weights::Digest(base) + ".safetensors";
  ASSERT_TRUE(WriteCheckpoint(folder_, data, 2).ok());
  Damage(file);
  EXPECT_EQ(LoadLatestCheckpoint(folder_).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(LoadLatestCheckpoint(folder_, &other).status().code(), StatusCode::kDataLoss);
  const auto loaded = LoadLatestCheckpoint(folder_, &base);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_THAT(loaded->notes, ElementsAre(HasSubstr(file)));
  EXPECT_EQ(weights::Digest(loaded->data.state.train.params), weights::Digest(base));

  // The next run's first checkpoint does not trust what is there.
  data.state.step = 2;
  std::string digest;
  ASSERT_TRUE(WriteCheckpoint(folder_, data, 2, &digest).ok());
  const auto again = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_THAT(again->notes, IsEmpty());
  EXPECT_TRUE(ReadCheckpoint(folder_ + "/step_000001/").ok());
}

TEST_F(Checkpoint, AManifestCannotNameAFileElsewhere) {
  CheckpointData data = Data(1);
  data.lora = {.rank = 1};
  data.state.train.adapters = {{"a.lora_A.weight", Tensor({1})}};
  ASSERT_TRUE(WriteCheckpoint(folder_, data, 2).ok());
  const std::string path = folder_ + "/step_000001/manifest.json";
  std::string text = ReadFile(path).value();
  const std::string digest = weights::Digest(data.state.train.params);
  text.replace(text.find(digest), digest.size(), "/../../../../../../../../etc/xxx");
  std::ofstream(path, std::ios::binary) << text;
  const auto loaded = ReadCheckpoint(folder_ + "/step_000001");
  EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(loaded.status().message(), HasSubstr("no digest"));
}

TEST_F(Checkpoint, AdaptersHaveAFileAndTheirOptions) {
  CheckpointData want = Data(4);
  want.state.train.adapters = {{"a.lora_A.weight", Tensor({1, 2})}};
  want.lora = {.rank = 3, .alpha = 6, .rslora = true, .targets = {"q_proj", "v_proj"}};
  ASSERT_TRUE(WriteCheckpoint(folder_, want, 2).ok());
  const auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(weights::Digest(loaded->data.state.train.adapters),
            weights::Digest(want.state.train.adapters));
  EXPECT_EQ(loaded->data.lora.rank, 3);
  EXPECT_EQ(loaded->data.lora.alpha, 6);
  EXPECT_TRUE(loaded->data.lora.rslora);
  EXPECT_EQ(loaded->data.lora.targets, want.lora.targets);
  Damage("step_000004/adapters.safetensors");
  EXPECT_EQ(LoadLatestCheckpoint(folder_).status().code(), StatusCode::kDataLoss);
}

TEST_F(Checkpoint, D6_TheScheduleSurvivesBitForBit) {
  const CheckpointData want = Data(4);
  ASSERT_TRUE(WriteCheckpoint(folder_, want, 2).ok());
  const auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(loaded.ok());
  for (int64_t step = 4; step < 9; ++step) {
    EXPECT_EQ(LearningRate(loaded->data.schedule, step), LearningRate(want.schedule, step));
  }
}

TEST_F(Checkpoint, KeepsTheNewest) {
  for (int64_t step = 1; step <= 5; ++step)
    ASSERT_TRUE(WriteCheckpoint(folder_, Data(step), 2).ok());
  EXPECT_THAT(Entries(), ElementsAre("latest", "step_000004", "step_000005"));
  ASSERT_TRUE(WriteCheckpoint(folder_, Data(5), 2).ok());  // the same step again
  EXPECT_EQ(LoadLatestCheckpoint(folder_)->data.state.step, 5);
}

TEST_F(Checkpoint, CorruptionIsNamedAndTheOneBeforeIsUsed) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    for (int64_t step = 1; step <= 2; ++step)
      ASSERT_TRUE(WriteCheckpoint(folder_, Data(step), 2).ok());
    const std::string path = folder_ + "/step_000002/" + file;
    if (std::string(file) == "manifest.json") {
      fs::resize_file(path, 40);
    } else {
      Damage(std::string("step_000002/") + file);
    }
    const auto direct = ReadCheckpoint(folder_ + "/step_000002");
    ASSERT_FALSE(direct.ok()) << file;
    EXPECT_EQ(direct.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(direct.status().message(), HasSubstr(file));
    const auto loaded = LoadLatestCheckpoint(folder_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ(loaded->data.state.step, 1);
    ASSERT_THAT(loaded->notes, SizeIs(1));
    EXPECT_THAT(loaded->notes[0], HasSubstr("step_000002"));
    EXPECT_THAT(loaded->notes[0], HasSubstr(file));
  }
}

TEST_F(Checkpoint, TruncatedOrMissingFilesAreDataLossNotACrash) {
  ASSERT_TRUE(WriteCheckpoint(folder_, Data(1), 2).ok());
  fs::resize_file(folder_ + "/step_000001/model.safetensors", 30);
  auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(loaded.status().message(), HasSubstr("no whole checkpoint"));
  fs::remove(folder_ + "/step_000001/model.safetensors");
  EXPECT_FALSE(LoadLatestCheckpoint(folder_).ok());
}

TEST_F(Checkpoint, AWriteThatDiedLeavesTheOldOne) {
  ASSERT_TRUE(WriteCheckpoint(folder_, Data(1), 2).ok());
  fs::create_directories(folder_ + "/.writing_step_000002");  // kill -9 in the middle
  std::ofstream(folder_ + "/.writing_step_000002/model.safetensors") << "half";
  EXPECT_EQ(LoadLatestCheckpoint(folder_)->data.state.step, 1);
  ASSERT_TRUE(WriteCheckpoint(folder_, Data(2), 2).ok());
  EXPECT_THAT(Entries(), ElementsAre("latest", "step_000001", "step_000002"));
}

TEST_F(Checkpoint, LatestMayBeMissingOrGarbage) {
  ASSERT_TRUE(WriteCheckpoint(folder_, Data(3), 2).ok());
  std::ofstream(folder_ + "/latest") << "../../etc/passwd\n";
  auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(loaded.ok());
  EXPECT_THAT(loaded->notes, SizeIs(1));
  fs::remove(folder_ + "/latest");
  EXPECT_EQ(LoadLatestCheckpoint(folder_)->data.state.step, 3);
  EXPECT_EQ(LoadLatestCheckpoint(folder_ + "/nowhere").status().code(), StatusCode::kNotFound);
}

TEST_F(Checkpoint, AfterAFallbackTheAbandonedFutureGoesFirst) {
  for (int64_t step = 1; step <= 2; ++step)
    ASSERT_TRUE(WriteCheckpoint(folder_, Data(step * 10), 2).ok());
  ASSERT_TRUE(WriteCheckpoint(folder_, Data(11), 2).ok());  // resumed from 10
  EXPECT_THAT(Entries(), ElementsAre("latest", "step_000010", "step_000011"));
}

TEST_F(Checkpoint, ListsOldestFirstAndSaysWhatNoReplayNeeds) {
  EXPECT_THAT(ListCheckpoints(folder_ + "/none"), IsEmpty());
  for (const int64_t step : {4, 9}) ASSERT_TRUE(WriteCheckpoint(folder_, Data(step), 3).ok());
  auto infos = ListCheckpoints(folder_);
  ASSERT_THAT(infos, SizeIs(2));
  EXPECT_EQ(infos[0].step, 4);
  EXPECT_EQ(infos[0].committed_batch, 9);
  EXPECT_EQ(infos[1].step, 9);
  EXPECT_EQ(infos[0].path, folder_ + "/step_000004");
  EXPECT_EQ(ReleasableBatch(infos, 3), 0);  // the start of the run is the third
  EXPECT_EQ(ReleasableBatch(infos, 2), 9);
  EXPECT_EQ(ReleasableBatch({}, 1), 0);
  // One without a readable manifest can restore nothing.
  std::ofstream(folder_ + "/step_000004/manifest.json") << "{";
  infos = ListCheckpoints(folder_);
  ASSERT_THAT(infos, SizeIs(1));
  EXPECT_EQ(infos[0].step, 9);
}

TEST(Manifest, RefusesHostileText) {
  const auto text = FormatManifest({.data = Data(3), .model_digest = "m", .optimizer_digest = "o"});
  ASSERT_TRUE(text.ok());
  ASSERT_TRUE(ParseManifest(*text).ok());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = *text;
    changed.replace(changed.find(from), from.size(), to);
    return ParseManifest(changed).status();
  };
  EXPECT_EQ(with("forebay-checkpoint-1", "forebay-checkpoint-9").code(), StatusCode::kDataLoss);
  EXPECT_EQ(with("\"step\": 3", "\"step\": -3").code(), StatusCode::kDataLoss);
  EXPECT_EQ(with("\"step\": 3", "\"step\": \"three\"").code(), StatusCode::kDataLoss);
  EXPECT_THAT(with("\"committed_batch\"", "\"committed\"").message(), HasSubstr("committed_batch"));
  EXPECT_FALSE(ParseManifest("").ok());
  EXPECT_FALSE(ParseManifest("[]").ok());
  EXPECT_FALSE(ParseManifest(text->substr(0, text->size() / 2)).ok());
  CheckpointData bad = Data(3);
  bad.app_state = "{";
  EXPECT_EQ(FormatManifest({.data = bad}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Checkpoint, TheWriterReportsEachAttemptAndTheLastStatus) {
  std::vector<CheckpointReport> reports;
  {
    CheckpointWriter writer({.folder = folder_, .keep = 1},
                            [&](const CheckpointReport& r) { reports.push_back(r); });
    EXPECT_TRUE(writer.Wait(Now()).ok());
    ASSERT_TRUE(writer.TryWrite(Data(1)));
    ASSERT_TRUE(writer.Wait(Now() + FromSeconds(60)).ok());
    CheckpointData bad = Data(2);
    bad.app_state = "{";
    ASSERT_TRUE(writer.TryWrite(bad));
    EXPECT_FALSE(writer.Wait(Now() + FromSeconds(60)).ok());
    ASSERT_TRUE(writer.TryWrite(Data(3)));
  }  // finishes what is in flight
  ASSERT_THAT(reports, SizeIs(3));
  EXPECT_EQ(reports[0].committed_batch, 6);
  EXPECT_EQ(reports[0].releasable_batch, 6);  // it is the oldest that is kept
  EXPECT_FALSE(reports[1].status.ok());
  EXPECT_EQ(reports[1].releasable_batch, 0);
  EXPECT_TRUE(reports[2].status.ok());
  EXPECT_THAT(Entries(), ElementsAre("latest", "step_000003"));
}

}  // namespace
}  // namespace forebay::learner
