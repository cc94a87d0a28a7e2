// LoadModelFiles and WriteModelFolder, on the demo model where tools/setup has put it, and on the
// parity model.
#include "forebay/weights/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"
#include "forebay/weights/weights_testing.h"

namespace forebay::weights {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

const std::string kSource = FOREBAY_SOURCE_DIR;
const std::string kParity = kSource + "/tests/goldens/parity/llama";
const std::string kDemo = kSource + "/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";

// Half a gigabyte in f32: loaded once.
const Result<ModelFiles>& Demo() {
  static const auto* const kFiles = new Result<ModelFiles>(LoadModelFiles(kDemo));
  return *kFiles;
}

class DemoModelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kDemo))
      GTEST_SKIP() << "tools/setup has not been run: no " << kDemo;
    ASSERT_TRUE(Demo().ok()) << Demo().status().ToString();
  }
};

TEST_F(DemoModelTest, HasTheTensorsOfTheCheckpoint) {
  const TensorMap& tensors = Demo()->tensors;
  EXPECT_THAT(tensors, SizeIs(272));
  EXPECT_EQ(tensors.at("model.embed_tokens.weight").shape().ToString(), "f32[49152,576]");
  EXPECT_EQ(tensors.at("model.layers.29.self_attn.k_proj.weight").shape().ToString(),
            "f32[192,576]");
  EXPECT_EQ(tensors.at("model.layers.29.mlp.down_proj.weight").shape().ToString(), "f32[576,1536]");
  EXPECT_EQ(tensors.at("model.norm.weight").shape().ToString(), "f32[576]");
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
  // Values by the package `gguf` 0.19 (dequantize) and the row order of facts.md; all 272 tensors
  // were equal.
  const auto embedding = tensors.at("model.embed_tokens.weight").as<float>();
  EXPECT_EQ(embedding[576], -0.0238037109375F);
  EXPECT_EQ(embedding[embedding.size() - 1], -0.0417022705078125F);
  const auto query = tensors.at("model.layers.0.self_attn.q_proj.weight").as<float>();
  EXPECT_EQ(query[577], 0.39794921875F);
  EXPECT_EQ(query[query.size() - 1], -0.255859375F);
  const auto down = tensors.at("model.layers.29.mlp.down_proj.weight").as<float>();
  EXPECT_EQ(down[1536], -0.33282470703125F);
}

TEST_F(DemoModelTest, HasItsConfig) {
  const auto config = nlohmann::json::parse(Demo()->config_json);
  EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  EXPECT_EQ(config["num_hidden_layers"], 30);
  EXPECT_EQ(config["head_dim"], 64);
  EXPECT_EQ(config["rope_theta"], 1e5);
  EXPECT_EQ(config["rms_norm_eps"], 1e-5);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["eos_token_id"], 2);
}

struct Encoded {
  std::string_view text;
  std::vector<int32_t> ids;
};

// Ids by the package `tokenizers` 0.22.1, its BPE built from the same metadata.
TEST_F(DemoModelTest, EncodesAsTheReferenceAndDecodesToTheSame) {
  const auto tokenizer = tokenizer::Tokenizer::FromJson(Demo()->tokenizer_json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->vocab_size(), 49152);
  EXPECT_EQ((*tokenizer)->TokenId("<|im_end|>"), 2);
  const std::vector<Encoded> goldens = {
      {"Hello world", {19556, 905}},
      {"What is 12+345?", {1780, 314, 216, 33, 34, 27, 35, 36, 37, 47}},
      {"<|im_start|>user\nHi<|im_end|>\n", {1, 4093, 198, 26843, 2, 198}},
      {"  def f(x):\n\treturn x**2\n",
       {216, 753, 275, 24, 104, 727, 198, 197, 5406, 1792, 828, 34, 198}},
      {"naïve café — 日本語 🙂",
       {3546, 46494, 37366, 1841, 17097, 241, 115, 40993, 179, 120, 248, 47526}},
      {"", {}},
      {"I'm they'll  don't\n\n\n end", {57, 5248, 502, 3060, 216, 1326, 982, 16506, 1112}},
  };
  for (const Encoded& golden : goldens) {
    const auto ids = (*tokenizer)->Encode(golden.text);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, golden.ids) << golden.text;
    EXPECT_EQ(*(*tokenizer)->Decode(*ids, false), golden.text);
  }
}

// As transformers' apply_chat_template renders it from the exported folder.
TEST_F(DemoModelTest, RendersItsChatTemplate) {
  const auto chat_template = tokenizer::ChatTemplate::Parse(Demo()->chat_template);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().ToString();
  const std::vector<tokenizer::Message> messages = {{"user", "Hi 12+3?"}};
  EXPECT_EQ(*(*chat_template)->Render(messages, {.add_generation_prompt = true}),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n"
            "<|im_start|>user\nHi 12+3?<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(DemoModelTest, AFileCutShortIsDataLossWithItsName) {
  const TestFolder folder;
  const auto start = ReadFile(kDemo, size_t{200} << 20);
  ASSERT_TRUE(start.ok()) << start.status().ToString();
  const std::string path = folder.File("cut.gguf");
  ASSERT_EQ(WriteFileAtomic(path, std::string_view(*start).substr(0, start->size() / 2)),
            OkStatus());
  const auto files = LoadModelFiles(path);
  EXPECT_EQ(files.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(files.status().message(), StartsWith(path));
}

TEST(ModelFilesTest, ReadsAFolder) {
  const auto files = LoadModelFiles(kParity);
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_THAT(files->tensors, SizeIs(29));
  EXPECT_THAT(files->config_json, HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(files->generation_config_json, HasSubstr("eos_token_id"));
  EXPECT_THAT(files->tokenizer_json, IsEmpty());
  EXPECT_THAT(files->chat_template, IsEmpty());
}

TEST(ModelFilesTest, WhatIsExportedIsLoadedAgain) {
  const TestFolder folder;
  ModelFiles files = TinyModelFiles({});
  files.tensors = LoadModelFiles(kParity)->tensors;
  for (const std::string_view name : {"model", "in/folders/that/are/new/", "model/"}) {
    const std::string path = folder.File(name);
    std::filesystem::remove_all(path);
    ASSERT_EQ(WriteModelFolder(path, files), OkStatus()) << name;
    const auto again = LoadModelFiles(path);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(Digest(again->tensors), Digest(files.tensors));
    EXPECT_EQ(again->config_json, files.config_json);
    EXPECT_EQ(again->tokenizer_json, files.tokenizer_json);
    EXPECT_EQ(again->chat_template, files.chat_template);
    EXPECT_EQ(again->generation_config_json, files.generation_config_json);
    const auto config = nlohmann::json::parse(again->tokenizer_config_json);
    EXPECT_EQ(config["eos_token"], "<|im_end|>");
    EXPECT_EQ(config["bos_token"], "<|im_start|>");
    EXPECT_EQ(config["pad_token"], "<|endoftext|>");
    EXPECT_EQ(config["model_max_length"], 1024);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.File("model.tmp")));
}

TEST(ModelFilesTest, ATokenizerConfigThatCameWithTheModelIsKept) {
  const TestFolder folder;
  ModelFiles files = TinyModelFiles({});
  files.tokenizer_config_json = R"({"eos_token":"<|other|>","chat_template":"old"})";
  const std::string path = folder.File("model");
  ASSERT_EQ(WriteModelFolder(path, files), OkStatus());
  const auto again = LoadModelFiles(path);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->chat_template, files.chat_template);
  EXPECT_THAT(again->tokenizer_config_json, HasSubstr("<|other|>"));
}

TEST(ModelFilesTest, AnExportNeverOverwrites) {
  const TestFolder folder;
  const ModelFiles files = TinyModelFiles({});
  const std::string path = folder.File("model");
  ASSERT_EQ(MakeFolders(path), OkStatus());
  ASSERT_EQ(MakeFolders(path + ".tmp/left by a killed export"), OkStatus());
  ASSERT_EQ(WriteModelFolder(path, files), OkStatus());  // an empty folder holds nothing to lose
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  const Status second = WriteModelFolder(path, files);
  EXPECT_EQ(second.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(second.message(), HasSubstr(path));
  EXPECT_EQ(WriteModelFolder(path + "/config.json", files).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(LoadModelFiles(path).ok());
}

TEST(ModelFilesTest, AnExportThatFailsLeavesNothing) {
  const TestFolder folder;
  const std::string path = folder.File("model");
  ModelFiles files = TinyModelFiles({});
  files.chat_template = "\xff";
  EXPECT_EQ(WriteModelFolder(path, files).code(), StatusCode::kInvalidArgument);
  files = TinyModelFiles({});
  files.config_json = "[]";
  EXPECT_EQ(WriteModelFolder(path, files).code(), StatusCode::kInvalidArgument);
  files = TinyModelFiles({});
  files.tokenizer_json = "no JSON";
  EXPECT_EQ(WriteModelFolder(path, files).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(ModelFilesTest, FindsTheChatTemplateWhereverItIs) {
  const TestFolder folder;
  ModelFiles files = TinyModelFiles({});
  const std::string path = folder.File("model");
  ASSERT_EQ(WriteModelFolder(path, files), OkStatus());
  const auto template_with = [&](std::string_view tokenizer_config) {
    EXPECT_EQ(WriteFileAtomic(path + "/tokenizer_config.json", tokenizer_config), OkStatus());
    return LoadModelFiles(path);
  };
  EXPECT_EQ(
      template_with(
          R"({"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})")
          ->chat_template,
      "D");
  EXPECT_EQ(template_with(R"({"chat_template":[{"name":1},2]})")->chat_template, "");
  EXPECT_EQ(template_with("{}")->chat_template, "");
  EXPECT_EQ(template_with("[").status().code(), StatusCode::kDataLoss);
  ASSERT_EQ(WriteFileAtomic(path + "/chat_template.jinja", "J"), OkStatus());
  EXPECT_EQ(template_with(R"({"chat_template":"C"})")->chat_template, "J");
}

TEST(ModelFilesTest, SaysWhatIsNotThere) {
  const TestFolder folder;
  const auto message = [](const std::string& path) {
    const auto files = LoadModelFiles(path);
    EXPECT_EQ(files.status().code(), StatusCode::kNotFound) << path;
    return files.status().message();
  };
  EXPECT_THAT(message(folder.File("none")), HasSubstr("none"));
  EXPECT_THAT(message(folder.File("")), HasSubstr("config.json"));
  ASSERT_EQ(WriteFileAtomic(folder.File("config.json"), "{}"), OkStatus());
  EXPECT_THAT(message(folder.File("")), HasSubstr("model.safetensors"));
}

TEST(ModelFilesTest, FilesOfOtherKindsAreRefused) {
  const TestFolder folder;
  const std::string path = folder.File("x.gguf");
  ASSERT_EQ(WriteFileAtomic(path, "PK something else"), OkStatus());
  EXPECT_EQ(LoadModelFiles(path).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(LoadModelFiles(kParity + "/model.safetensors").status().code(),
            StatusCode::kInvalidArgument);
  GgufBuilder mamba;
  mamba.String("general.architecture", "mamba");
  ASSERT_EQ(WriteFileAtomic(path, mamba.Build()), OkStatus());
  EXPECT_EQ(LoadModelFiles(path).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(LoadModelFiles(path).status().message(), HasSubstr("mamba"));
  GgufBuilder hollow;
  hollow.String("general.architecture", "llama");
  ASSERT_EQ(WriteFileAtomic(path, hollow.Build()), OkStatus());
  EXPECT_EQ(LoadModelFiles(path).status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(LoadModelFiles(path).status().message(), HasSubstr("llama.block_count"));
}

}  // namespace
}  // namespace forebay::weights
