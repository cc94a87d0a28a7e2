// Goal: what a run recorded is read back right, whatever its files hold; tensors that differ are
// named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "apps/replay.h"
#include "apps/run_record.h"
#include "apps/tensor_difference.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::apps {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::Pair;

class RunRecordTest : public testing::Test {
 protected:
  RunRecordTest() {
    fs::remove_all(run_);
    fs::create_directories(run_);
    Write("config.toml", "");
  }
  ~RunRecordTest() override { fs::remove_all(run_); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(run_ + "/" + name, std::ios::binary) << text;
  }
  RunRecord Read() const {
    auto record = ReadRunRecord(run_);
    FB_CHECK(record.ok(), record.status().ToString());
    return std::move(*record);
  }
  const std::string run_ = (fs::path(testing::TempDir()) / "forebay_run_record").string();
};

TEST_F(RunRecordTest, AStepThatIsTakenAgainGivesUpWhatFollowed) {
  Write("metrics.jsonl", R"({"step":1,"config":"a","fingerprint":{"loss":"1"}}
{"step":2,"config":"a","fingerprint":{"loss":"2"}}
{"step":3,"config":"a","fingerprint":{"loss":"3"}}
{"step":2,"config":"b","fingerprint":{"loss":"4"}}
)");
  const RunRecord record = Read();
  EXPECT_THAT(record.steps, ElementsAre(Key(1), Key(2)));
  EXPECT_EQ(record.steps.at(2).config_id, "b");
  EXPECT_THAT(record.steps.at(2).fingerprint, ElementsAre(Pair("loss", "4")));
}

TEST_F(RunRecordTest, WhatIsNoStepIsSkipped) {
  Write("metrics.jsonl", std::string("\0\xff\n", 3) + R"([1]
{"step":"1"}
{"step":1e300}
{"step":4,"fingerprint":[1]}
{"step":4,"fingerprint":{"loss":7}}
{"step":5}
{"step":6,"config":3}
{"step":7,"fing)");
  const RunRecord record = Read();
  EXPECT_THAT(record.steps, testing::Contains(Key(5)));
  EXPECT_TRUE(record.steps.at(5).fingerprint.empty());
  EXPECT_FALSE(record.steps.contains(4));
  EXPECT_FALSE(record.steps.contains(6));
  EXPECT_FALSE(record.steps.contains(7));
}

TEST_F(RunRecordTest, TheConfigurationOfAStepIsThatOfItsStart) {
  const auto config =
      control::ParseConfig("[model]\npath = \"tiny:\"", "x", "/folder",
                           {"env.kind=builtin", "env.builtin=slow", "learner.learning_rate=0.25"});
  ASSERT_TRUE(config.ok());
  const StartRecord start = MakeStart(*config, 3, "cpu \"1\"");
  Write("starts.jsonl", StartLine(start) + "\n");
  Write("metrics.jsonl", "{\"step\":4,\"config\":\"" + start.config_id + "\"}\n{\"step\":5}\n");
  const RunRecord record = Read();
  const auto found = ConfigOfStep(record, 4, {"learner.clip_high=0.5"});
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->config.learner.learning_rate, 0.25);
  EXPECT_EQ(found->config.learner.clip_high, 0.5);
  EXPECT_EQ(found->config.folder, "/folder");
  EXPECT_EQ(found->start.plugin, "cpu \"1\"");
  EXPECT_EQ(found->start.after_step, 3);
  EXPECT_EQ(ConfigOfStep(record, 5, {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ConfigOfStep(record, 6, {}).status().code(), StatusCode::kNotFound);
}

TEST_F(RunRecordTest, NoRunAndNoStepAreSaid) {
  EXPECT_THAT(ReadRunRecord(run_).status().message(), HasSubstr("no optimizer step"));
  EXPECT_THAT(ReadRunRecord(run_ + "/none").status().message(), HasSubstr("holds no run"));
}

weights::HostTensor Tensor(const std::vector<float>& values) {
  std::span<std::byte> bytes;
  auto tensor = weights::HostTensor::Allocate(
      {xla::DType::kF32, {static_cast<int64_t>(values.size())}}, &bytes);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return tensor;
}

TEST(TensorDifference, NamesTensorAndElement) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const weights::TensorMap a = {{"a", Tensor({1, nan})}, {"b", Tensor({2, 3, 4})}};
  EXPECT_EQ(FirstTensorDifference(a, a), "");
  EXPECT_EQ(FirstTensorDifference({}, {}), "");
  weights::TensorMap b = a;
  b["b"] = Tensor({2, 3, 4.5});
  EXPECT_EQ(FirstTensorDifference(a, b), "tensor b differs first in element 2: 4 and 4.5");
  b["b"] = Tensor({2, 3});
  EXPECT_EQ(FirstTensorDifference(a, b), "tensor b has another shape");
  b.erase("b");
  EXPECT_EQ(FirstTensorDifference(a, b), "tensor b is in one of them only");
  EXPECT_EQ(FirstTensorDifference(b, a), "tensor b is in one of them only");
  // Zeros that compare equal are other bits.
  EXPECT_THAT(FirstTensorDifference({{"z", Tensor({0.0F})}}, {{"z", Tensor({-0.0F})}}),
              HasSubstr("0 and -0"));
}

TEST(ReplayText, NamesTheFirstDifference) {
  Replay replay{.step = 2, .from_step = 1};
  EXPECT_THAT(FormatReplay(replay), HasSubstr("nothing was compared"));
  replay.rows = {{1, "loss", "1", "1", true}, {2, "loss", "1", "2", false}};
  ASSERT_NE(replay.first_difference(), nullptr);
  EXPECT_EQ(replay.first_difference()->step, 2);
  EXPECT_THAT(FormatReplay(replay), HasSubstr("1 of 2 comparisons differ"));
  EXPECT_THAT(ReplayJson(replay), HasSubstr("\"equal\":false"));
  replay.rows.pop_back();
  EXPECT_EQ(replay.first_difference(), nullptr);
  EXPECT_THAT(FormatReplay(replay), HasSubstr("bit for bit"));
}

}  // namespace
}  // namespace forebay::apps
