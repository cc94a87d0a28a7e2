// Counting collectives in serialized modules: hand-made ones, and damaged ones.
#include "forebay/xla/pjrt/hlo_collectives.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/xla/topology.h"

namespace forebay::xla::pjrt {
namespace {

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

std::string Message(int field, std::string_view bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + std::string(bytes);
}

std::string Number(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}

std::string Instruction(const std::string& opcode, const std::string& called = "") {
  return Message(2, Message(1, "name") + Message(2, opcode) + called);
}

std::string Computation(uint64_t id, const std::vector<std::string>& instructions) {
  std::string all;
  for (const std::string& instruction : instructions) all += instruction;
  return Message(3, Message(1, "computation") + all + Number(5, id));
}

std::string Module(const std::string& computations) {
  return Message(1, Message(1, "module") + computations) + Message(2, "configuration");
}

TEST(HloCollectivesTest, BlockingAndOverlapped) {
  const std::string module = Module(
      Computation(7, {Instruction("all-gather")}) +  // started by 300's first
      Computation(200, {Instruction("call", Number(38, 201))}) +
      Computation(201, {Instruction("reduce-scatter")}) +                // and by its second
      Computation(9, {Instruction("all-reduce"), Instruction("add")}) +  // called plainly
      Computation(
          300, {Instruction("async-start", Message(38, Varint(7))),
                Instruction("async-start", Number(38, 200)), Instruction("async-done"),
                Instruction("fusion", Message(38, Varint(9))), Instruction("all-to-all"),
                Instruction("collective-permute-start"), Instruction("collective-permute-done")}));
  const std::optional<CollectiveSites> sites = CountCollectives(module);
  ASSERT_TRUE(sites.has_value());
  EXPECT_EQ(sites->blocking, 2);
  EXPECT_EQ(sites->overlapped, 3);
}

TEST(HloCollectivesTest, WhatIsNoModuleIsNone) {
  EXPECT_FALSE(CountCollectives("").has_value());
  EXPECT_FALSE(CountCollectives("garbage, not a module").has_value());
  EXPECT_FALSE(CountCollectives(Message(1, "")).has_value());
  EXPECT_FALSE(CountCollectives(std::string(20, '\xff')).has_value());
  // A length beyond the end.
  EXPECT_FALSE(CountCollectives(Varint(1 << 3 | 2) + Varint(UINT64_MAX)).has_value());
}

TEST(HloCollectivesTest, NoTruncationIsReadAsAWhole) {
  const std::string computation = Computation(1, {Instruction("all-gather")});
  const std::string module = Message(1, computation);
  ASSERT_TRUE(CountCollectives(module).has_value());
  for (size_t size = 0; size < module.size(); ++size) {
    EXPECT_FALSE(CountCollectives(std::string_view(module).substr(0, size)).has_value()) << size;
  }
}

}  // namespace
}  // namespace forebay::xla::pjrt
