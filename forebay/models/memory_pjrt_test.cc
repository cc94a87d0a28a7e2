// The memory of a training step grows with the tokens of a row, not with their square.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/models/program_testing.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::DType;
using xla::Value;

// Temporary memory of loss and gradients over one row of `tokens`; only compiled, never run.
int64_t TempBytes(const Model& model, int64_t tokens, AttentionForm form) {
  xla::Graph graph("memory");
  const ForwardOptions options{.layout = LayerLayout::kStacked, .remat = true, .attention = form};
  ParamValues params;
  for (const ParamSpec& spec : model.Params(options.layout)) {
    params[spec.name] = graph.Parameter(spec.shape, spec.name);
  }
  const xla::Shape row{DType::kS32, {1, tokens}};
  const Value hidden =
      model.Hidden(params,
                   {graph.Parameter(row, "tokens"), graph.Parameter(row, "segments"),
                    graph.Parameter(row, "positions")},
                   options);
  const Value logprobs =
      ChunkedLogprobs(xla::Reshape(hidden, {tokens, model.config().width}), model.Head(params),
                      graph.Parameter({DType::kS32, {tokens}}, "targets"), 1.0, 256);
  std::vector<Value> wrt;
  for (const auto& [name, value] : params) wrt.push_back(value);
  const xla::Program program =
      graph.Finish(xla::Gradients(xla::ReduceSum(logprobs, {0}), wrt)).value();
  return TestClient().Compile(program).value()->memory().value().temp_bytes;
}

TEST(TrainingMemory, GrowsWithTokensAndNotWithTheirSquare) {
  const Golden golden = LoadGolden(FOREBAY_SOURCE_DIR);
  for (const AttentionForm form : {AttentionForm::kAuto, AttentionForm::kHost}) {
    std::vector<int64_t> bytes;
    for (const int64_t tokens : {2048, 4096, 8192}) {
      bytes.push_back(TempBytes(*golden.model, tokens, form));
    }
    const double first = static_cast<double>(bytes[1] - bytes[0]);
    const double second = static_cast<double>(bytes[2] - bytes[1]);
    EXPECT_GT(first, 0);
    EXPECT_LT(second, 2.1 * first) << bytes[0] << " " << bytes[1] << " " << bytes[2];
    // What the square form would take for 4096 tokens: the bias alone has 64 MiB.
    EXPECT_GT(TempBytes(*golden.model, 4096, AttentionForm::kSquare), 2 * bytes[1]);
  }
}

// Prints the table of docs/models.md; run it with --gtest_also_run_disabled_tests.
TEST(TrainingMemory, DISABLED_PrintsTheTableOfTheDocumentation) {
  const auto model = Model::Create(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 4096,
          "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 4, "intermediate_size": 768, "max_position_embeddings": 32768})")
                         .value();
  for (const int64_t tokens : {4096, 8192, 16384, 32768}) {
    const auto megabytes = [&](AttentionForm form) {
      return static_cast<double>(TempBytes(*model, tokens, form)) / 1e6;
    };
    std::printf("%lld tokens: blocks %.0f MB", static_cast<long long>(tokens),
                megabytes(AttentionForm::kBlocks));
    std::printf(", host %.0f MB", megabytes(AttentionForm::kHost));
    if (tokens <= 8192) std::printf(", square %.0f MB", megabytes(AttentionForm::kSquare));
    std::printf("\n");
  }
}

}  // namespace
}  // namespace forebay::models
