// Every optimizer gives on any mesh what it gives on one device, and keeps the same whole arrays as
// state, so that what one mesh saved goes on on another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/optimizer_program_testing.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;
using xla::Axes;
using xla::DType;
// As models/weight_map.cc splits them. The embedding's blocks of 32 are cut where its rows of 96
// come in two parts; q_proj in four parts has 9 columns, which do not divide once more.
std::vector<models::ParamSpec> Specs() {
  const Axes gathered = {xla::kFsdpAxis, xla::kExpertAxis, xla::kContextAxis};
  const Axes none;
  return {{.name = "model.embed_tokens.weight",
           .shape = {DType::kF32, {64, 96}},
           .partition = {xla::kTensorAxis, gathered}},
          {.name = "model.layers.0.self_attn.q_proj.weight",
           .shape = {DType::kF32, {12, 18}},
           .partition = {xla::kTensorAxis, xla::kFsdpAxis}},
          {.name = "model.layers.*.mlp.up_proj.weight",
           .shape = {DType::kF32, {2, 64, 64}},
           .partition = {none, xla::kTensorAxis, gathered}},
          {.name = "model.layers.*.mlp.down_proj.weight",
           .shape = {DType::kF32, {2, 48, 64}},
           .partition = {none, gathered, xla::kTensorAxis}},
          {.name = "model.layers.*.mlp.experts.*.up_proj.weight",
           .shape = {DType::kF32, {2, 4, 128, 32}},
           .partition = {none, xla::kExpertAxis, xla::kTensorAxis,
                         Axes{xla::kFsdpAxis, xla::kContextAxis}}},
          {.name = "model.layers.*.self_attn.q_proj.bias",
           .shape = {DType::kF32, {2, 12}},
           .decay = false,
           .partition = {none, xla::kTensorAxis}},
          {.name = "model.norm.weight", .shape = {DType::kF32, {48}}, .decay = false}};
}

xla::Mesh MeshOf(const xla::MeshSizes& s) {
  return xla::Mesh::Create(s, s.data * s.fsdp * s.expert * s.context * s.tensor).value();
}

class ShardedOptimizer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    client_ =
        xla::Client::Create({.plugin_path = xla::FindPlugin("").value(), .cpu_device_count = 8})
            .value()
            .release();
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(client_->live_buffers(), 0);
    delete client_;
  }

  // Over a mesh, from the same parameters and with the same gradients for a seed.
  class Run {
   public:
    Run(OptimizerKind kind, const xla::MeshSizes& sizes)
        : program_(
              *client_,
              {.kind = kind, .beta2 = 0.97, .epsilon = 1e-4, .weight_decay = 0.1, .grad_clip = 30},
              Specs(), RandomArrays(Specs(), 1, 0.5), MeshOf(sizes)) {}

    // Returns the gradient's norm.
    float Step(uint64_t seed) {
      return program_.Step(RandomArrays(Specs(), seed, seed % 2 == 0 ? 1 : 0.1), 1e-2);
    }
    std::vector<float> Param(size_t i) const { return program_.Param(i); }
    ByteArrays Save() const { return program_.Save(); }
    void Load(const ByteArrays& saved, int64_t updates) { program_.Load(saved, updates); }

   private:
    OptimizerProgram program_;
  };

  // The share of elements of all parameters that are not equal to rounding, and the largest
  // difference.
  static std::pair<double, double> Compare(const Run& a, const Run& b) {
    double largest = 0;
    int64_t differ = 0, all = 0;
    for (size_t i = 0; i < Specs().size(); ++i) {
      const auto x = a.Param(i), y = b.Param(i);
      for (size_t k = 0; k < x.size(); ++k) {
        const double difference = std::abs(static_cast<double>(x[k]) - static_cast<double>(y[k]));
        largest = std::max(largest, difference);
        differ += difference > 2e-6 ? 1 : 0;
        ++all;
      }
    }
    return {static_cast<double>(differ) / static_cast<double>(all), largest};
  }

  static inline xla::Client* client_ = nullptr;
};

const std::vector<xla::MeshSizes> kMeshes = {{.fsdp = 2},
                                             {.tensor = 4},
                                             {.data = 2, .fsdp = 2, .tensor = 2},
                                             {.fsdp = 2, .expert = 2, .context = 2}};

TEST_F(ShardedOptimizer, EachGivesWhatOneDeviceGives) {
  for (const OptimizerKind kind : kAllOptimizers) {
    Run one(kind, {});
    float norm = 0;
    for (uint64_t step = 0; step < 4; ++step) norm = one.Step(10 + step);
    for (const xla::MeshSizes& sizes : kMeshes) {
      const std::string what =
          std::string(OptimizerKindName(kind)) + " on " + MeshOf(sizes).ToString();
      Run many(kind, sizes);
      float norm_of_many = 0;
      for (uint64_t step = 0; step < 4; ++step) norm_of_many = many.Step(10 + step);
      EXPECT_NEAR(norm_of_many, norm, 1e-5 * norm) << what;
      const auto [share, largest] = Compare(one, many);
      if (kind == OptimizerKind::kAdamW8bit) {
        // A moment on the edge of its random draw may take the other code: 9 % of a few.
        EXPECT_LT(share, 1e-3) << what;
        EXPECT_LT(largest, 2e-3) << what;
      } else {
        EXPECT_LT(largest, 1e-5) << what;
      }
    }
  }
}

TEST_F(ShardedOptimizer, StateSavedOnOneMeshIsTheSameOnAnother) {
  for (const OptimizerKind kind : kAllOptimizers) {
    Run first(kind, {.fsdp = 2, .expert = 2, .context = 2});
    for (uint64_t step = 0; step < 2; ++step) first.Step(20 + step);
    const ByteArrays saved = first.Save();
    for (const xla::MeshSizes& sizes : {xla::MeshSizes{}, xla::MeshSizes{.fsdp = 2, .tensor = 2}}) {
      Run second(kind, sizes);
      second.Load(saved, 2);
      EXPECT_EQ(second.Save(), saved) << OptimizerKindName(kind);
      Run same(kind, {.fsdp = 2, .expert = 2, .context = 2});
      same.Load(saved, 2);
      second.Step(30);
      same.Step(30);
      const auto [share, largest] = Compare(same, second);
      EXPECT_LT(share, 1e-3) << OptimizerKindName(kind);
      EXPECT_LT(largest, 2e-3) << OptimizerKindName(kind);
    }
  }
}

TEST(ShardedOptimizerSpecs, OnlyScalesThatTheMeshCutsAreWhole) {
  const auto specs = Specs();
  const auto scales = [&](const xla::MeshSizes& sizes) {
    for (const StateSpec& s :
         OptimizerStateSpecs({.kind = OptimizerKind::kAdamW8bit}, specs, MeshOf(sizes))) {
      if (s.slot == "m8_scale" && s.param == 0) return s;
    }
    return StateSpec{};
  };
  const StateSpec fits = scales({.fsdp = 3, .tensor = 2}), cut = scales({.fsdp = 2, .tensor = 2});
  EXPECT_EQ(fits.shape, (xla::Shape{DType::kF32, {64, 3}}));
  EXPECT_EQ(fits.shape, cut.shape);
  EXPECT_EQ(fits.partition, specs[0].partition);
  EXPECT_EQ(cut.partition, xla::PartitionSpec{xla::kTensorAxis});
}

TEST(ShardedOptimizerSpecs, APartThatDoesNotDivideIsRefused) {
  const auto program = TraceApply(Specs(), {.kind = OptimizerKind::kMuon}, MeshOf({.tensor = 5}));
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(program.status().message(), HasSubstr("tensor"));
}

}  // namespace
}  // namespace forebay::learner
