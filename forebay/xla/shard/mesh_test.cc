// Meshes, specs and slices: arithmetic without a plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh TwoByFour() { return Mesh::Create({{"fsdp", 2}, {"tensor", 4}}).value(); }

TEST(MeshTest, GroupsFollowTheGivenOrderOfAxes) {
  const Mesh mesh = TwoByFour();
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_THAT(mesh.Groups("tensor"), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(mesh.Groups("fsdp"), ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5),
                                               ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(mesh.Groups({"fsdp", "tensor"}), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  EXPECT_THAT(mesh.Groups({"tensor", "fsdp"}), ElementsAre(ElementsAre(0, 4, 1, 5, 2, 6, 3, 7)));
  EXPECT_EQ(mesh.Groups(Axes()).size(), 8u);
  EXPECT_EQ(mesh.Index(6, "fsdp"), 1);
  EXPECT_EQ(mesh.Index(6, "tensor"), 2);
  EXPECT_EQ(mesh.Index(6, {"tensor", "fsdp"}), 5);
  EXPECT_EQ(mesh.Others("fsdp"), Axes("tensor"));
}

TEST(MeshTest, OneDeviceHasNoAxes) {
  const Mesh mesh;
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.ToString(), "one device");
  EXPECT_THAT(mesh.Groups(Axes()), ElementsAre(ElementsAre(0)));
  EXPECT_TRUE(CheckSpec(mesh, {}, {DType::kF32, {3}}).ok());
}

TEST(MeshTest, SizesMustUseAllDevices) {
  const Result<Mesh> mesh = Mesh::Create(MeshSizes{.fsdp = 2, .tensor = 4}, 8);
  ASSERT_TRUE(mesh.ok()) << mesh.status().ToString();
  EXPECT_EQ(mesh->ToString(), "data=1 x fsdp=2 x expert=1 x context=1 x tensor=4");
  EXPECT_EQ(mesh->Groups(kTensorAxis)[1], (std::vector<int64_t>{4, 5, 6, 7}));
  Status status = Mesh::Create(MeshSizes{.fsdp = 3, .tensor = 4}, 8).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("takes 12 devices, but there are 8: fsdp=2 would"));
  status = Mesh::Create(MeshSizes{.tensor = 3}, 8).status();
  EXPECT_THAT(status.message(), HasSubstr("the product of the sizes must be 8"));
}

TEST(MeshTest, WrongAxesAreRefused) {
  EXPECT_THAT(Mesh::Create({{"a", 2}, {"a", 2}}).status().message(), HasSubstr("a is there twice"));
  EXPECT_THAT(Mesh::Create({{"a", 0}}).status().message(), HasSubstr("a has size 0"));
  EXPECT_THAT(Mesh::Create({{"a", -1}}).status().message(), HasSubstr("at least 1"));
  EXPECT_FALSE(Mesh::Create({{"", 1}}).ok());
  EXPECT_FALSE(Mesh::Create({{"a\"b", 1}}).ok());
  EXPECT_FALSE(Mesh::Create({{"a", int64_t{1} << 62}, {"b", int64_t{1} << 62}}).ok());
  std::vector<MeshAxis> many;
  for (int i = 0; i < 33; ++i) many.push_back({"a" + std::to_string(i), 1});
  EXPECT_FALSE(Mesh::Create(many).ok());
}

TEST(SpecTest, NamesAndEquality) {
  const PartitionSpec spec{"fsdp", {}, {"data", "tensor"}, {}};
  EXPECT_EQ(spec.ToString(), "[fsdp, -, data x tensor]");
  EXPECT_EQ(spec, (PartitionSpec{"fsdp", {}, {"data", "tensor"}}));
  EXPECT_EQ((PartitionSpec{{}, {}}), PartitionSpec());
  EXPECT_EQ(spec.axes(), (Axes{"fsdp", "data", "tensor"}));
  EXPECT_EQ((PartitionSpec{{"data", "tensor"}}).dims().size(), 1u);
}

TEST(SpecTest, ErrorsNameTheAxisAndTheValidSizes) {
  const Mesh mesh = TwoByFour();
  const Shape shape{DType::kF32, {8, 10}};
  EXPECT_TRUE(CheckSpec(mesh, {"fsdp"}, shape).ok());
  EXPECT_TRUE(CheckSpec(mesh, {{"fsdp", "tensor"}}, shape).ok());
  Status status = CheckSpec(mesh, {"fsdp", "tensor"}, shape);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("spec [fsdp, tensor]: dimension 1 of f32[8,10] has size 10, which the "
                        "axis tensor of size 4 does not divide; with this array tensor may have "
                        "size 1, 2, 5 or 10"));
  EXPECT_THAT(CheckSpec(mesh, {"expert"}, shape).message(),
              HasSubstr("the mesh (fsdp=2 x tensor=4) has no axis \"expert\""));
  EXPECT_THAT(CheckSpec(mesh, {"fsdp", "fsdp"}, shape).message(), HasSubstr("named twice"));
  EXPECT_THAT(CheckSpec(mesh, {{}, {}, "fsdp"}, shape).message(), HasSubstr("has 3 dimensions"));
}

TEST(SliceTest, PartsTogetherAreTheWhole) {
  const Mesh mesh = TwoByFour();
  const Shape shape{DType::kS32, {4, 3, 8}};
  std::vector<int32_t> values(96);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  const auto bytes = std::as_bytes(std::span(values));
  for (const PartitionSpec& spec :
       {PartitionSpec{}, PartitionSpec{"fsdp"}, PartitionSpec{{}, {}, "tensor"},
        PartitionSpec{"tensor", {}, "fsdp"}, PartitionSpec{{}, {}, {"tensor", "fsdp"}},
        PartitionSpec{{"fsdp"}, {}, "tensor"}}) {
    const std::vector<ShardSlice> slices = ShardSlices(mesh, spec, shape);
    ASSERT_EQ(slices.size(), 8u);
    const Shape local = LocalShape(mesh, spec, shape);
    EXPECT_EQ(GlobalShape(mesh, spec, local), shape);
    std::vector<int32_t> back(values.size(), -1);
    for (const ShardSlice& slice : slices) {
      std::vector<std::byte> part(static_cast<size_t>(local.bytes()));
      ReadSlice(bytes, shape, slice, part);
      WriteSlice(std::as_writable_bytes(std::span(back)), shape, slice, part);
    }
    EXPECT_EQ(back, values) << spec.ToString();
  }
}

TEST(SliceTest, AnAxisOfTwoNamesCountsTheFirstSlowest) {
  const Mesh mesh = TwoByFour();
  const std::vector<ShardSlice> slices =
      ShardSlices(mesh, PartitionSpec{{"tensor", "fsdp"}}, {DType::kF32, {16}});
  EXPECT_EQ(slices[5], (ShardSlice{{6}, {2}}));  // tensor 1, fsdp 1: part 3
  std::vector<float> values(16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<float> part(2);
  ReadSlice(std::as_bytes(std::span(values)), {DType::kF32, {16}}, slices[5],
            std::as_writable_bytes(std::span(part)));
  EXPECT_THAT(part, ElementsAre(6, 7));
}

TEST(SliceTest, ScalarsAndEmptyArrays) {
  const Mesh mesh = TwoByFour();
  EXPECT_EQ(ShardSlices(mesh, {}, {DType::kF32, {}})[3], ShardSlice{});
  const Shape empty{DType::kF32, {0, 4}};
  const ShardSlice slice = ShardSlices(mesh, PartitionSpec{"fsdp"}, empty)[1];
  ReadSlice({}, empty, slice, {});
  const float value = 7;
  float copy = 0;
  ReadSlice(std::as_bytes(std::span(&value, 1)), {DType::kF32, {}}, {},
            std::as_writable_bytes(std::span(&copy, 1)));
  EXPECT_EQ(copy, 7);
}

}  // namespace
}  // namespace forebay::xla
