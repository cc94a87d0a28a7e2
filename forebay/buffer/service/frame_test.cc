// Goal: a connection's bytes become the frames that were sent, however they are cut, and nothing
// that was damaged becomes a frame.
#include "forebay/buffer/service/frame.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/service/frame_reader.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

TEST(Frame, HeaderRoundTrip) {
  const FrameHeader header{.length = 77,
                           .type = FrameType::kAppend,
                           .flags = 0,
                           .table = 513,
                           .request = 0x0102030405060708,
                           .argument = 9,
                           .extra = 10,
                           .payload_crc = 11};
  const FrameHeaderBytes bytes = EncodeFrameHeader(header);
  const auto parsed = ParseFrameHeader({bytes.data(), bytes.size()}, 100);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->length, 77U);
  EXPECT_EQ(parsed->type, FrameType::kAppend);
  EXPECT_EQ(parsed->table, 513);
  EXPECT_EQ(parsed->request, 0x0102030405060708U);
  EXPECT_EQ(parsed->argument, 9U);
  EXPECT_EQ(parsed->extra, 10U);
  EXPECT_EQ(parsed->payload_crc, 11U);
  // The documented layout, for those who write a client.
  EXPECT_EQ(bytes[0], 77);
  EXPECT_EQ(bytes[4], 16);
  EXPECT_EQ(bytes[8], 8);
}

TEST(Frame, EveryBitOfTheHeaderIsChecked) {
  const FrameHeaderBytes bytes = EncodeFrameHeader({.length = 5, .type = FrameType::kTake});
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    FrameHeaderBytes damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(ParseFrameHeader({damaged.data(), damaged.size()}, 1 << 20).status().code(),
              StatusCode::kDataLoss)
        << bit;
  }
}

TEST(Frame, OversizedIsRefusedFromTheHeader) {
  const FrameHeaderBytes bytes = EncodeFrameHeader({.length = 101, .type = FrameType::kAppend});
  EXPECT_EQ(ParseFrameHeader({bytes.data(), bytes.size()}, 100).status().code(),
            StatusCode::kResourceExhausted);
  FrameReader reader(100);
  std::vector<char> scratch(64);
  std::copy(bytes.begin(), bytes.end(), scratch.begin());
  EXPECT_EQ(reader
                .Commit(scratch, bytes.size(),
                        [](const FrameHeader&, std::string_view) { return OkStatus(); })
                .code(),
            StatusCode::kResourceExhausted);
  iovec areas[2];
  EXPECT_LE(reader.Prepare(scratch, areas), 2);
}

TEST(FrameReader, AnyCutGivesTheSameFrames) {
  Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    std::vector<std::pair<uint64_t, std::string>> sent;
    for (uint64_t i = 0; i < 20; ++i) {
      std::string payload(rng.Below(4) == 0 ? 0 : rng.Below(3000), '\0');
      for (char& c : payload) c = static_cast<char>(rng.Below(256));
      FrameHeader header{.type = FrameType::kAppend, .request = i};
      if (rng.Below(2) == 0) {
        header.flags = kFrameHasCrc;
        header.payload_crc = Crc32c(payload);
      }
      bytes += FrameBytes(header, payload);
      sent.emplace_back(i, std::move(payload));
    }
    FrameReader reader(1 << 20);
    std::vector<char> scratch(1 + rng.Below(4000));
    std::vector<std::pair<uint64_t, std::string>> got;
    std::string_view rest = bytes;
    while (!rest.empty()) {
      iovec areas[2];
      const int n = reader.Prepare(scratch, areas);
      size_t budget = std::min<size_t>(rest.size(), 1 + rng.Below(5000));
      size_t moved = 0;
      for (int i = 0; i < n && budget > 0; ++i) {
        const size_t take = std::min(budget, areas[i].iov_len);
        std::memcpy(areas[i].iov_base, rest.data(), take);
        rest.remove_prefix(take);
        budget -= take;
        moved += take;
      }
      const Status status =
          reader.Commit(scratch, moved, [&](const FrameHeader& header, std::string_view payload) {
            got.emplace_back(header.request, std::string(payload));
            // Whoever keeps the block keeps the bytes.
            if (const std::shared_ptr<char[]> block = reader.TakeBlock(); block != nullptr) {
              EXPECT_EQ(std::string_view(block.get() + kFrameHeaderBytes, payload.size()), payload);
            }
            return OkStatus();
          });
      ASSERT_TRUE(status.ok()) << status.message();
    }
    ASSERT_EQ(got, sent) << "round " << round;
    EXPECT_FALSE(reader.partial());
  }
}

TEST(FrameReader, PayloadChecksumIsChecked) {
  std::string bytes =
      FrameBytes({.type = FrameType::kAppend, .flags = kFrameHasCrc, .payload_crc = 1}, "payload");
  FrameReader reader(100);
  std::vector<char> scratch(bytes.begin(), bytes.end());
  EXPECT_EQ(reader
                .Commit(scratch, scratch.size(),
                        [](const FrameHeader&, std::string_view) {
                          ADD_FAILURE() << "a damaged payload was delivered";
                          return OkStatus();
                        })
                .code(),
            StatusCode::kDataLoss);
}

}  // namespace
}  // namespace forebay::buffer
