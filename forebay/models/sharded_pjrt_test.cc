// Every family's training pass on 2, 4 and 8 devices, over each axis of a mesh and several
// together, has the loss and gradients of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/models/weight_map.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {
namespace {

using xla::Argument;
using xla::DType;
using xla::Value;
using xla::Values;

constexpr int64_t kRows = 8, kLength = 16;

struct Family {
  std::string name, config;
};

std::string Config(const std::string& architecture, const std::string& more) {
  return R"({"architectures": [")" + architecture + R"("], "vocab_size": 64, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "max_position_embeddings": 64, "rms_norm_eps": 1e-5)" +
         more + "}";
}

std::vector<Family> Families() {
  return {{"llama", Config("LlamaForCausalLM", R"(, "tie_word_embeddings": false)")},
          {"qwen2", Config("Qwen2ForCausalLM", R"(, "tie_word_embeddings": true)")},
          {"qwen3", Config("Qwen3ForCausalLM", R"(, "tie_word_embeddings": false)")},
          {"qwen3_moe",
           Config("Qwen3MoeForCausalLM",
                  R"(, "tie_word_embeddings": false, "num_experts": 4, "num_experts_per_tok": 2,
     "moe_intermediate_size": 24, "norm_topk_prob": true, "decoder_sparse_step": 1,
     "mlp_only_layers": [])")},
          {"gemma3", Config("Gemma3ForCausalLM",
                            R"(, "tie_word_embeddings": true, "query_pre_attn_scalar": 8,
     "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"])")}};
}

// tokens, targets, segments, positions [B, T]: two segments and padding in each row.
std::vector<Argument> Batch() {
  Rng rng(3);
  std::vector<float> tokens, targets, segments, positions;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto first = static_cast<int64_t>(3 + rng.Below(5));
    const auto second = static_cast<int64_t>(10 + rng.Below(6));
    for (int64_t t = 0; t < kLength; ++t) {
      const int64_t segment = t < first ? 1 : t < second ? 2 : 0;
      segments.push_back(static_cast<float>(segment));
      positions.push_back(static_cast<float>(segment == 2 ? t - first : segment == 1 ? t : 0));
      tokens.push_back(static_cast<float>(rng.Below(64)));
      targets.push_back(segment == 0 ? -1.0F : static_cast<float>(rng.Below(64)));
    }
  }
  const xla::Shape shape{DType::kS32, {kRows, kLength}};
  return {{shape, tokens}, {shape, targets}, {shape, segments}, {shape, positions}};
}

// xs: the batch, then the parameters. Loss and the parameters' gradients.
Values LossAndGradients(const Model& model, const std::vector<ParamSpec>& specs,
                        const ForwardOptions& options, std::span<const Value> xs) {
  ParamValues params;
  for (size_t i = 0; i < specs.size(); ++i) params[specs[i].name] = xs[4 + i];
  const Value hidden = model.Hidden(
      params, {.tokens_BT = xs[0], .segments_BT = xs[2], .positions_BT = xs[3]}, options);
  const int64_t tokens = hidden.dim(0) * hidden.dim(1);
  const Value head = options.parallel.Gather(model.Head(params), TablePartition(), DType::kF32);
  Value entropy;
  const Value logprobs =
      ChunkedLogprobs(xla::Reshape(hidden, {tokens, hidden.dim(2)}), head,
                      xla::Reshape(xs[1], {tokens}), 0.7, 7, &entropy, options.parallel);
  Value loss = xla::ReduceSum(logprobs * logprobs, {0});
  Value disorder = xla::ReduceSum(entropy, {0});
  if (options.parallel.on()) {
    loss = xla::Psum(loss, TokenAxes());
    disorder = xla::Psum(disorder, TokenAxes());
  }
  Values out{loss, disorder};
  const Values gradients = xla::Gradients(loss, xs.subspan(4));
  out.insert(out.end(), gradients.begin(), gradients.end());
  return out;
}

// Relative to the largest element: each is a sum of terms of both signs.
void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0, difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max<double>(largest, std::abs(expected[i]));
    difference = std::max<double>(difference, std::abs(actual[i] - expected[i]));
  }
  EXPECT_GT(largest, 0) << what;
  EXPECT_LE(difference, 1e-5 * largest) << what;
}

struct MeshCase {
  xla::MeshSizes sizes;
  ParallelOptions choices = {};
};

// Each mesh costs seconds: every family meets the ring, some of them the other axes.
std::vector<MeshCase> Meshes(const std::string& family, LayerLayout layout) {
  if (layout == LayerLayout::kPerLayer) return {{{.tensor = 2}}};
  const ParallelOptions travel{ContextAttention::kRing, ExpertTraffic::kAllToAll};
  const ParallelOptions gather{ContextAttention::kGather, ExpertTraffic::kGather};
  if (family == "llama") {
    return {{{.data = 2}},
            {{.fsdp = 4}},
            {{.fsdp = 8}},
            {{.data = 2, .fsdp = 2, .tensor = 2}},
            {{.context = 2}, travel},
            {{.context = 8}, travel},
            {{.fsdp = 2, .context = 2}, gather},
            {{.fsdp = 2, .context = 2, .tensor = 2}, travel}};
  }
  if (family == "qwen3_moe") {
    return {{{.expert = 2}, travel},
            {{.fsdp = 2, .expert = 2, .tensor = 2}, gather},
            {{.fsdp = 2, .expert = 4}, travel},
            {{.expert = 2, .context = 2, .tensor = 2}, travel}};
  }
  if (family == "gemma3") {
    return {{{.context = 2}, travel},
            {{.fsdp = 2, .context = 2}, gather},
            {{.context = 8}, travel},
            {{.context = 4, .tensor = 2}, travel}};
  }
  return {{{.context = 2}, travel}, {{.fsdp = 2, .context = 4}, travel}};
}

class ShardedTest : public testing::TestWithParam<Family> {};

TEST_P(ShardedTest, EveryMeshHasTheLossAndGradientsOfOneDevice) {
  const std::unique_ptr<Model> model = Model::Create(GetParam().config).value();
  for (const LayerLayout layout : {LayerLayout::kPerLayer, LayerLayout::kStacked}) {
    const std::vector<ParamSpec> specs = model->Params(layout);
    std::vector<Argument> arguments = Batch();
    std::vector<xla::PartitionSpec> in(4, RowsPartition()), out(2);
    for (const ParamSpec& spec : specs) {
      arguments.push_back(xla::RandomArgument(spec.shape.dims, arguments.size(), -0.3F, 0.3F));
      in.push_back(spec.partition);
      out.push_back(spec.partition);
    }
    const auto expected = xla::RunFn(
        [&](std::span<const Value> xs) {
          return LossAndGradients(*model, specs, {.layout = layout}, xs);
        },
        arguments);
    for (const auto& [sizes, choices] : Meshes(GetParam().name, layout)) {
      const int64_t devices = sizes.data * sizes.fsdp * sizes.expert * sizes.context * sizes.tensor;
      const xla::Mesh mesh = xla::Mesh::Create(sizes, devices).value();
      const auto results = xla::RunShardMap(
          {mesh, in, out},
          [&](std::span<const Value> xs) {
            return LossAndGradients(*model, specs,
                                    {.layout = layout, .parallel = Parallel(true, choices)}, xs);
          },
          arguments);
      ASSERT_EQ(results.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        ExpectClose(results[i], expected[i],
                    mesh.ToString() + ", result " + std::to_string(i) + " " +
                        (i < 2 ? "" : specs[i - 2].name));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ShardedTest, testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace forebay::models
