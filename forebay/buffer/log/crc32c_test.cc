// The checksum: by every means that this CPU has, at every length and alignment, in parts, and of
// copies.
#include "forebay/buffer/log/crc32c.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/rng.h"

namespace forebay::buffer {
namespace {

std::string RandomBytes(size_t size) {
  Rng rng(size + 1);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(rng.Below(256));
  return bytes;
}

std::vector<Crc32cMeans> Means() {
  std::vector<Crc32cMeans> means;
  for (const auto m : {Crc32cMeans::kTable, Crc32cMeans::kInstruction, Crc32cMeans::kFolding}) {
    if (HasCrc32cMeans(m)) means.push_back(m);
  }
  return means;
}

TEST(Crc32c, KnownValues) {
  EXPECT_TRUE(HasCrc32cMeans(Crc32cMeans::kTable));
  for (const Crc32cMeans means : Means()) {
    EXPECT_EQ(Crc32cBy(means, "123456789"), 0xe3069283U);  // RFC 3720's check value
    EXPECT_EQ(Crc32cBy(means, std::string(32, '\0')), 0x8a9136aaU);
    EXPECT_EQ(Crc32cBy(means, ""), 0U);
    EXPECT_EQ(Crc32cBy(means, "", 77), 77U);
  }
}

// Past two folded blocks; of the instruction's three lanes, twice.
TEST(Crc32c, EveryLengthByEveryMeans) {
  const std::string bytes = RandomBytes(6500);
  const std::string_view all = bytes;
  for (size_t size = 0; size <= 6400; size += size < 1100 ? 1 : 97) {
    const std::string_view part = all.substr(size % 67, size);
    const uint32_t crc = Crc32cBy(Crc32cMeans::kTable, part, 5);
    EXPECT_EQ(Crc32c(part, 5), crc) << size;
    for (const Crc32cMeans means : Means()) EXPECT_EQ(Crc32cBy(means, part, 5), crc) << size;
  }
}

TEST(Crc32c, InPartsItIsThatOfTheWhole) {
  const std::string bytes = RandomBytes(2000);
  const std::string_view all = bytes;
  for (const Crc32cMeans means : Means()) {
    const uint32_t whole = Crc32cBy(Crc32cMeans::kTable, all);
    for (size_t cut = 0; cut <= all.size(); ++cut) {
      EXPECT_EQ(Crc32cBy(means, all.substr(cut), Crc32cBy(means, all.substr(0, cut))), whole)
          << cut;
    }
  }
}

TEST(Crc32c, EveryBitCounts) {
  std::string bytes = RandomBytes(700);
  for (const Crc32cMeans means : Means()) {
    const uint32_t whole = Crc32cBy(means, bytes);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      EXPECT_NE(Crc32cBy(means, bytes), whole) << bit;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
  }
}

TEST(Crc32c, ACopyIsWholeAndStaysWithinItsPlace) {
  const std::string bytes = RandomBytes(30'000);
  const std::string_view all = bytes;
  for (const Crc32cMeans means : Means()) {
    for (size_t size = 0; size <= 29'000; size += size < 1100 ? 1 : 1777) {
      const std::string_view part = all.substr(size % 61, size);
      const size_t at = size % 59;
      std::string to(at + size + 64, '#');
      EXPECT_EQ(Crc32cCopyBy(means, to.data() + at, part), Crc32cBy(Crc32cMeans::kTable, part));
      EXPECT_EQ(to, std::string(at, '#') + std::string(part) + std::string(64, '#')) << size;
    }
  }
  std::string to(bytes.size(), '\0');
  EXPECT_EQ(Crc32cCopy(to.data(), bytes), Crc32c(bytes));
  EXPECT_EQ(to, bytes);
}

}  // namespace
}  // namespace forebay::buffer
