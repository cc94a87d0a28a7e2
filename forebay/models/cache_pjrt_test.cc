// Generation with the key/value cache equals the forward pass over whole sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/models/program_testing.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::Buffer;
using xla::Value;

constexpr int64_t kSlots = 3, kCapacity = 96;

// Parameters and caches on the device; compiles a program for each shape it is asked for.
class Rig {
 public:
  explicit Rig(const Golden& golden) : model_(*golden.model) {
    const weights::TensorMap params =
        model_.FromCheckpoint(golden.checkpoint, LayerLayout::kPerLayer).value();
    for (const auto& [name, tensor] : params) {
      names_.push_back(name);
      params_.push_back(TestClient().FromHost(tensor.bytes(), tensor.shape()).value());
    }
    const std::vector<float> zeros(static_cast<size_t>(CacheShape().elements()), 0);
    for (int64_t i = 0; i < 2 * model_.config().layers; ++i) {
      caches_.push_back(TestClient().FromVector(zeros, CacheShape()).value());
    }
  }

  // -> logits [tokens, V] of one prompt chunk.
  std::vector<float> Prefill(std::vector<int32_t> tokens, int32_t slot, int32_t start,
                             int32_t length, int64_t context) {
    const auto count = static_cast<int64_t>(tokens.size());
    return Call("prefill", {{count}, {}, {}, {}}, {std::move(tokens), {slot}, {start}, {length}},
                context);
  }
  // -> logits [slots, V] of one step.
  std::vector<float> Decode(std::vector<int32_t> tokens, std::vector<int32_t> positions,
                            int64_t context) {
    return Call("decode", {{kSlots}, {kSlots}}, {std::move(tokens), std::move(positions)}, context);
  }
  std::vector<std::vector<float>> Caches() const {
    std::vector<std::vector<float>> values;
    values.reserve(caches_.size());
    for (const Buffer& cache : caches_) values.push_back(cache.ToVector<float>().value());
    return values;
  }
  size_t vocab() const { return static_cast<size_t>(model_.config().vocab_size); }

 private:
  xla::Shape CacheShape() const {
    const ModelConfig& c = model_.config();
    return {xla::DType::kF32, {kSlots, c.kv_heads, kCapacity, c.head_dim}};
  }

  std::shared_ptr<xla::Executable> Compile(const std::string& kind,
                                           const std::vector<xla::Dims>& dims, int64_t context) {
    auto& executable = executables_[{kind, dims[0], context}];
    if (executable != nullptr) return executable;
    xla::Graph graph(kind);
    ParamValues params;
    for (size_t i = 0; i < names_.size(); ++i) {
      params[names_[i]] = graph.Parameter(params_[i].shape(), names_[i]);
    }
    KvCache cache;
    std::vector<xla::Alias> aliases;
    for (size_t i = 0; i < caches_.size(); ++i) {
      auto& side = i < caches_.size() / 2 ? cache.keys : cache.values;
      side.push_back(graph.Parameter(CacheShape(), "cache" + std::to_string(i)));
      aliases.push_back({static_cast<int>(names_.size() + i), static_cast<int>(i + 1)});
    }
    std::vector<Value> in;
    in.reserve(dims.size());
    for (const xla::Dims& d : dims) in.push_back(graph.Parameter({xla::DType::kS32, d}, "in"));
    const Value hidden = kind == "decode"
                             ? model_.Decode(params, in[0], in[1], context, &cache)
                             : model_.Prefill(params, in[0], in[1], in[2], in[3], context, &cache);
    std::vector<Value> results = {xla::Linear(hidden, model_.Head(params))};
    results.insert(results.end(), cache.keys.begin(), cache.keys.end());
    results.insert(results.end(), cache.values.begin(), cache.values.end());
    executable = TestClient().Compile(graph.Finish(results, aliases).value()).value();
    return executable;
  }

  std::vector<float> Call(const std::string& kind, const std::vector<xla::Dims>& dims,
                          const std::vector<std::vector<int32_t>>& values, int64_t context) {
    const auto executable = Compile(kind, dims, context);
    std::vector<Buffer> inputs;
    inputs.reserve(dims.size());
    for (size_t i = 0; i < dims.size(); ++i) {
      inputs.push_back(TestClient().FromVector(values[i], {xla::DType::kS32, dims[i]}).value());
    }
    std::vector<Buffer*> arguments;
    for (std::vector<Buffer>* group : {&params_, &caches_, &inputs}) {
      for (Buffer& buffer : *group) arguments.push_back(&buffer);
    }
    std::vector<Buffer> results = executable->Execute(arguments).value();
    std::vector<float> logits = results[0].ToVector<float>().value();
    for (size_t i = 0; i < caches_.size(); ++i) caches_[i] = std::move(results[i + 1]);
    return logits;
  }

  const Model& model_;
  std::vector<std::string> names_;
  std::vector<Buffer> params_, caches_;
  std::map<std::tuple<std::string, xla::Dims, int64_t>, std::shared_ptr<xla::Executable>>
      executables_;
};

int32_t ArgMax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

class CacheTest : public testing::Test {
 protected:
  explicit CacheTest(const std::string& family = "llama")
      : golden_(LoadGolden(FOREBAY_SOURCE_DIR, family)) {}
  void TearDown() override { EXPECT_EQ(TestClient().live_buffers(), 0); }

  std::vector<int32_t> Sequence(int i) const {
    const auto ids = golden_.reference.at("seq" + std::to_string(i) + ".input_ids").as<int32_t>();
    return {ids.begin(), ids.end()};
  }
  std::span<const float> Logits(int i) const {
    return golden_.reference.at("seq" + std::to_string(i) + ".logits").as<float>();
  }
  static std::vector<int32_t> Padded(std::vector<int32_t> tokens, size_t count,
                                     int32_t filler = 0) {
    tokens.resize(count, filler);
    return tokens;
  }

  Golden golden_;
};

// What depends on a family's layer, its windows and its rotations.
class FamilyCacheTest : public CacheTest, public testing::WithParamInterface<std::string> {
 protected:
  FamilyCacheTest() : CacheTest(GetParam()) {}
};

TEST_P(FamilyCacheTest, GreedyContinuationEqualsTheReference) {
  Rig rig(golden_);
  const std::vector<int32_t> prompt = Sequence(1);
  const auto length = static_cast<int32_t>(prompt.size());
  const std::vector<float> logits = rig.Prefill(Padded(prompt, 32), 1, 0, length, 32);
  EXPECT_LT(MaxDifference(std::span(logits).first(prompt.size() * rig.vocab()), Logits(1)), 2e-4);
  std::vector<int32_t> chosen = {
      ArgMax(std::span(logits).subspan((prompt.size() - 1) * rig.vocab(), rig.vocab()))};
  for (int32_t i = 0; i < 15; ++i) {
    const std::vector<float> step = rig.Decode({0, chosen.back(), 0}, {-1, length + i, -1}, 64);
    chosen.push_back(ArgMax(std::span(step).subspan(rig.vocab(), rig.vocab())));
  }
  const auto expected = golden_.reference.at("seq1.greedy16").as<int32_t>();
  EXPECT_EQ(chosen, std::vector<int32_t>(expected.begin(), expected.end()));
}

// Three sequences of different lengths, all decoded from their first token, each in its own slot.
TEST_P(FamilyCacheTest, DecodingEqualsTheForwardPassForEverySlot) {
  Rig rig(golden_);
  for (int32_t t = 0; t < 50; ++t) {
    std::vector<int32_t> tokens, positions;
    for (int i = 0; i < 3; ++i) {
      const std::vector<int32_t> sequence = Sequence(i);
      const bool live = t < static_cast<int32_t>(sequence.size());
      tokens.push_back(live ? sequence[static_cast<size_t>(t)] : 0);
      positions.push_back(live ? t : -1);
    }
    const std::vector<float> logits = rig.Decode(tokens, positions, kCapacity);
    for (int i = 0; i < 3; ++i) {
      const auto slot = static_cast<size_t>(i);
      if (positions[slot] < 0) continue;
      EXPECT_LT(MaxDifference(std::span(logits).subspan(slot * rig.vocab(), rig.vocab()),
                              Logits(i).subspan(static_cast<size_t>(t) * rig.vocab(), rig.vocab())),
                2e-4)
          << "slot " << i << " token " << t;
    }
  }
}

TEST_P(FamilyCacheTest, PrefillInChunksEqualsOnePrefill) {
  const std::vector<int32_t> prompt = Sequence(2);  // 50 tokens
  Rig whole(golden_);
  whole.Prefill(Padded(prompt, 64), 2, 0, 50, 64);
  Rig parts(golden_);
  for (int32_t start = 0; start < 50; start += 16) {
    const auto begin = prompt.begin() + start;
    const int32_t length = std::min(16, 50 - start);
    const std::vector<float> logits =
        parts.Prefill(Padded({begin, begin + length}, 16, 77), 2, start, length, 64);
    const auto count = static_cast<size_t>(length) * parts.vocab();
    EXPECT_LT(MaxDifference(std::span(logits).first(count),
                            Logits(2).subspan(static_cast<size_t>(start) * parts.vocab(), count)),
              2e-4)
        << start;
  }
  // The next token sees the same past from both caches.
  const std::vector<float> x = whole.Decode({0, 0, 9}, {-1, -1, 50}, 64);
  const std::vector<float> y = parts.Decode({0, 0, 9}, {-1, -1, 50}, 64);
  EXPECT_LT(MaxDifference(std::span(x).subspan(2 * whole.vocab()),
                          std::span(y).subspan(2 * whole.vocab())),
            1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyCacheTest,
                         testing::Values("llama", "llama3_rope", "qwen2", "qwen3", "qwen3_moe",
                                         "gemma3"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

TEST_F(CacheTest, IdleSlotsKeepTheirCache) {
  Rig rig(golden_);
  rig.Prefill(Padded(Sequence(1), 32), 0, 0, 23, 32);
  rig.Prefill(Padded(Sequence(0), 48), 2, 0, 37, 48);
  const auto before = rig.Caches();
  rig.Decode({5, 6, 7}, {-1, -1, -1}, kCapacity);
  EXPECT_EQ(rig.Caches(), before);
  rig.Decode({5, 6, 7}, {-1, 0, -1000}, kCapacity);
  const auto after = rig.Caches();
  EXPECT_NE(after, before);
  const size_t slot = before[0].size() / kSlots;
  for (size_t i = 0; i < before.size(); ++i) {
    for (const size_t idle : {size_t{0}, size_t{2}}) {
      EXPECT_TRUE(std::equal(before[i].begin() + static_cast<int64_t>(idle * slot),
                             before[i].begin() + static_cast<int64_t>((idle + 1) * slot),
                             after[i].begin() + static_cast<int64_t>(idle * slot)))
          << "cache " << i << " slot " << idle;
    }
  }
}

TEST_F(CacheTest, EveryContextThatCoversThePositionsGivesTheSame) {
  std::vector<std::vector<float>> results;
  for (const int64_t context : {int64_t{24}, int64_t{32}, int64_t{64}, kCapacity}) {
    Rig rig(golden_);
    rig.Prefill(Padded(Sequence(1), 24), 1, 0, 23, context);
    const std::vector<float> logits = rig.Decode({0, 11, 0}, {-1, 23, -1}, context);
    results.emplace_back(logits.begin() + static_cast<int64_t>(rig.vocab()),
                         logits.begin() + static_cast<int64_t>(2 * rig.vocab()));
  }
  for (size_t i = 1; i < results.size(); ++i)
    EXPECT_LT(MaxDifference(results[i], results[0]), 1e-5) << i;
}

// A slot that is used again must not see what its last owner, or the padding of a chunk, left
// there.
TEST_F(CacheTest, AReusedSlotForgetsItsLastOwner) {
  Rig fresh(golden_), used(golden_);
  used.Prefill(Padded(Sequence(2), 64, 400), 1, 0, 50, 64);
  const std::vector<int32_t> prompt = Sequence(1);
  const auto a = fresh.Prefill(Padded(prompt, 32), 1, 0, 23, kCapacity);
  const auto b = used.Prefill(Padded(prompt, 32, 511), 1, 0, 23, kCapacity);
  const size_t count = 23 * fresh.vocab();
  EXPECT_EQ(MaxDifference(std::span(a).first(count), std::span(b).first(count)), 0);
  for (int32_t t = 0; t < 12; ++t) {
    const auto x = fresh.Decode({0, t, 0}, {-1, 23 + t, -1}, kCapacity);
    const auto y = used.Decode({0, t, 0}, {-1, 23 + t, -1}, kCapacity);
    EXPECT_EQ(MaxDifference(std::span(x).subspan(fresh.vocab(), fresh.vocab()),
                            std::span(y).subspan(fresh.vocab(), fresh.vocab())),
              0)
        << t;
  }
}

TEST_F(CacheTest, RefusesACacheOfTheWrongShape) {
  for (const int64_t capacity : {8, 64}) {
    xla::Graph graph("bad");
    ParamValues params;
    for (const ParamSpec& spec : golden_.model->Params(LayerLayout::kPerLayer)) {
      params[spec.name] = graph.Parameter(spec.shape, spec.name);
    }
    KvCache cache;
    const xla::Shape shape{xla::DType::kF32, {2, 2, capacity, 16}};
    for (int i = 0; i < (capacity == 8 ? 3 : 2); ++i) {
      cache.keys.push_back(graph.Parameter(shape, "k"));
      cache.values.push_back(graph.Parameter(shape, "v"));
    }
    const Value tokens = graph.Parameter({xla::DType::kS32, {2}}, "tokens");
    golden_.model->Decode(params, tokens, tokens, 32, &cache);
    EXPECT_THAT(graph.status().message(),
                testing::HasSubstr(capacity == 8 ? "at least the context 32" : "2 and 2 layers"));
  }
}

TEST_F(CacheTest, AMissingParameterIsNamed) {
  xla::Graph graph("missing");
  ParamValues params;
  for (const ParamSpec& spec : golden_.model->Params(LayerLayout::kStacked)) {
    params[spec.name] = graph.Parameter(spec.shape, spec.name);
  }
  const Value tokens = graph.Parameter({xla::DType::kS32, {1, 8}}, "tokens");
  golden_.model->Hidden(params, {tokens, tokens, tokens}, {.layout = LayerLayout::kPerLayer});
  EXPECT_THAT(graph.status().message(),
              testing::HasSubstr("missing the parameter model.layers.0.input_layernorm.weight"));
}

}  // namespace
}  // namespace forebay::models
