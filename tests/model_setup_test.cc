// Goal: what a model lacks for the episodes of a run is said, and does not keep it from being
// loaded for anything else.
#include "apps/model_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::apps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ModelSetupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "/forebay_model_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    config_.model.path = "tiny:";
    config_.rollout.context = 256;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A tiny model in a folder, as Hugging Face has them.
  void Write(const std::string& chat_template, bool end_of_turn) {
    Result<LoadedModel> tiny = LoadModel(config_);
    ASSERT_TRUE(tiny.ok()) << tiny.status().ToString();
    weights::ModelFiles files = tiny->files;
    files.tensors = tiny->initial;
    files.chat_template = chat_template;
    if (!end_of_turn) {
      for (std::string* text : {&files.config_json, &files.generation_config_json}) {
        const size_t at = text->find("eos_token_id");
        if (at != std::string::npos) text->replace(at, 12, "eos_of_nobody");
      }
    }
    config_.model.path = folder_ + "/model";
    const Status written = weights::WriteModelFolder(config_.model.path, files);
    ASSERT_TRUE(written.ok()) << written.ToString();
  }

  control::Config config_;
  std::string folder_;
};

TEST_F(ModelSetupTest, ATinyModelPlays) {
  const Result<LoadedModel> model = LoadModel(config_);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_THAT(model->stop_tokens, ElementsAre(weights::kTinyEnd));
  EXPECT_TRUE(CheckAgent(config_, *model).ok());
  const rollout::ServedModel served = Served(*model, "x", nullptr);
  EXPECT_EQ(served.name, "x");
  EXPECT_EQ(served.chat, model->chat.get());
  EXPECT_THAT(served.stop_tokens, ElementsAre(weights::kTinyEnd));
}

TEST_F(ModelSetupTest, ABaseModelIsLoadedAndPlaysNoEpisodes) {
  Write("", true);
  const Result<LoadedModel> model = LoadModel(config_);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->chat, nullptr);
  EXPECT_EQ(Served(*model, "base", nullptr).chat, nullptr);
  const Status agent = CheckAgent(config_, *model);
  EXPECT_EQ(agent.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(agent.message(), AllOf(HasSubstr(config_.model.path), HasSubstr("no chat template")));
}

TEST_F(ModelSetupTest, AnEndOfTurnMayComeFromTheConfiguration) {
  Write("{{ messages }}", false);
  Result<LoadedModel> model = LoadModel(config_);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_THAT(model->stop_tokens, IsEmpty());
  EXPECT_THAT(CheckAgent(config_, *model).message(), HasSubstr("set rollout.stop_tokens"));

  config_.rollout.stop_tokens = {"<|im_end|>", "a"};
  model = LoadModel(config_);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_THAT(model->stop_tokens, ElementsAre(weights::kTinyEnd, 'a'));
  EXPECT_TRUE(CheckAgent(config_, *model).ok());

  config_.rollout.stop_tokens = {"<|no_such_token|>"};
  EXPECT_THAT(LoadModel(config_).status().message(),
              AllOf(HasSubstr("rollout.stop_tokens"), HasSubstr("<|no_such_token|>")));
}

TEST_F(ModelSetupTest, TheContextOfARunIsWithinTheModels) {
  Write("{{ messages }}", true);
  config_.rollout.context = 257;
  const Result<LoadedModel> model = LoadModel(config_);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_THAT(CheckAgent(config_, *model).message(),
              AllOf(HasSubstr("rollout.context = 257"), HasSubstr("256 tokens")));
}

}  // namespace
}  // namespace forebay::apps
