// Goal: a step of several programs needs no room for a second set of gradients, and how devices
// share a step is what the options say.
#include "forebay/learner/train_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/lora.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::learner {
namespace {

constexpr std::string_view kLlama = R"("architectures": ["LlamaForCausalLM"])";
constexpr std::string_view kMoe =
    R"("architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 1,
       "moe_intermediate_size": 32)";

std::unique_ptr<models::Model> MakeModel(std::string_view family) {
  return models::Model::Create("{" + std::string(family) + R"(, "vocab_size": 64,
    "hidden_size": 64, "num_hidden_layers": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 256,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})")
      .value();
}

TEST(TrainPrograms, GradientsThatAreAddedToTheirSumNeedNoSecondSet) {
  const auto client = MakeClient();
  const auto model = MakeModel(kLlama);
  GradientProgramOptions options{.layout = models::LayerLayout::kStacked, .logprob_chunk = 16};
  const auto memory = [&] {
    const auto program = TraceGradient(*model, options, {1, 32});
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    return client->Compile(*program).value()->memory().value();
  };
  const xla::MemoryStats plain = memory();
  options.into_sum = true;
  const xla::MemoryStats added = memory();
  int64_t gradients = 0;
  for (const auto& spec : model->Params(options.layout)) gradients += spec.shape.bytes();
  EXPECT_EQ(added.alias_bytes, gradients);
  EXPECT_EQ(added.argument_bytes, plain.argument_bytes + gradients);
  // Of layers nothing more is there; embedding and head come whole before they are added.
  const auto all = [](const xla::MemoryStats& m) {
    return m.argument_bytes + m.output_bytes - m.alias_bytes + m.temp_bytes;
  };
  EXPECT_LE(all(added), all(plain) + gradients / 8);
}

TEST(TrainPrograms, SumsOfAdaptersAreDonatedToo) {
  const auto model = MakeModel(kLlama);
  const GradientProgramOptions options{.layout = models::LayerLayout::kStacked,
                                       .logprob_chunk = 16,
                                       .lora = {.rank = 2},
                                       .into_sum = true};
  const auto program = TraceGradient(*model, options, {1, 32});
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const auto adapters = LoraSpecs(model->Params(options.layout), options.lora).value();
  EXPECT_EQ(std::ranges::count_if(program->donated_to, [](int to) { return to >= 0; }),
            static_cast<int64_t>(adapters.size()));
  EXPECT_EQ(program->results.size(), adapters.size() + 1);
}

// How often all devices along `axis` use the collective.
int64_t Uses(const models::Model& model, const xla::MeshSizes& sizes,
             const models::ParallelOptions& parallel, std::string_view op, std::string_view axis) {
  const int64_t devices = sizes.data * sizes.fsdp * sizes.expert * sizes.context * sizes.tensor;
  const auto program = TraceGradient(model,
                                     {.layout = models::LayerLayout::kStacked,
                                      .logprob_chunk = 16,
                                      .mesh = xla::Mesh::Create(sizes, devices).value(),
                                      .parallel = parallel},
                                     {8, 32});
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  int64_t count = 0;
  for (const xla::CollectiveUse& use : program->cost.collectives) {
    if (use.op == op && use.axes == xla::Axes{std::string(axis)}) count += use.count;
  }
  return count;
}

TEST(TrainPrograms, ARowsKeysGoAroundOrAreGatheredAsTheOptionsSay) {
  using models::ContextAttention;
  const auto model = MakeModel(kLlama);
  const auto sent = [&](ContextAttention attention) {
    return Uses(*model, {.context = 2}, {.context_attention = attention}, "Ppermute",
                xla::kContextAxis);
  };
  EXPECT_GT(sent(ContextAttention::kRing), sent(ContextAttention::kGather));
  EXPECT_EQ(sent(ContextAttention::kAuto), sent(ContextAttention::kGather));  // rows are short
}

TEST(TrainPrograms, TokensGoToTheirExpertsOrToAllAsTheOptionsSay) {
  using models::ExpertTraffic;
  const auto model = MakeModel(kMoe);
  const auto sent = [&](ExpertTraffic traffic) {
    return Uses(*model, {.expert = 4}, {.expert_traffic = traffic}, "AllToAll", xla::kExpertAxis);
  };
  EXPECT_GT(sent(ExpertTraffic::kAllToAll), 0);
  EXPECT_EQ(sent(ExpertTraffic::kGather), 0);
}

}  // namespace
}  // namespace forebay::learner
