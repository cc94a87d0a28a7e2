#include "forebay/base/huge_pages.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace forebay {
namespace {

TEST(HugePages, AreZeroAlignedAndWritableToTheLastByte) {
  for (const size_t bytes : {size_t{1}, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    const auto memory = AllocateHugePages(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    std::byte* data = memory->get();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (size_t{2} << 20), 0u);
    EXPECT_EQ(data[0], std::byte{0});
    EXPECT_EQ(data[bytes - 1], std::byte{0});
    data[bytes - 1] = std::byte{7};
    EXPECT_EQ(data[bytes - 1], std::byte{7});
  }
}

TEST(HugePages, WhatCannotBeIsAnError) {
  for (const size_t bytes : {size_t{0}, SIZE_MAX, SIZE_MAX / 2}) {
    EXPECT_EQ(AllocateHugePages(bytes).status().code(), StatusCode::kResourceExhausted);
  }
}

// Kilobytes of address space of this process.
int64_t AddressSpace() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmSize:") continue;
    int64_t size = 0;
    status >> size;
    return size;
  }
  return 0;
}

TEST(HugePages, GoBackWithTheLastOwner) {
  static_cast<void>(AllocateHugePages(1));
  const int64_t before = AddressSpace();
  for (int i = 0; i < 100; ++i) {
    const auto memory = AllocateHugePages(size_t{64} << 20);
    ASSERT_TRUE(memory.ok());
  }
  EXPECT_LT(AddressSpace(), before + (64 << 10));
}

}  // namespace
}  // namespace forebay
