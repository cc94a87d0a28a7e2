// Goal: pieces of shared memory never overlap, no access leaves it, and its size is for good.
#include "forebay/buffer/service/shared_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "forebay/base/file.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

TEST(AreaSpace, PiecesDoNotOverlapAndComeTogetherAgain) {
  constexpr uint64_t kBytes = 1 << 20;
  AreaSpace space(kBytes);
  Rng rng(3);
  std::map<uint64_t, uint64_t> taken;
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (rng.Below(5) < 3) {
      const uint64_t bytes = 1 + rng.Below(60'000);
      const std::optional<uint64_t> offset = space.Take(bytes);
      if (!offset.has_value()) {
        ++refused;
        continue;
      }
      ASSERT_LE(*offset + bytes, kBytes);
      const auto next = taken.lower_bound(*offset);
      if (next != taken.end()) ASSERT_LE(*offset + bytes, next->first);
      if (next != taken.begin()) {
        const auto last = std::prev(next);
        ASSERT_LE(last->first + last->second, *offset);
      }
      taken[*offset] = bytes;
    } else if (!taken.empty()) {
      auto piece = taken.lower_bound(rng.Below(kBytes));
      if (piece == taken.end()) piece = taken.begin();
      space.Give(piece->first, piece->second);
      taken.erase(piece);
    }
  }
  EXPECT_GT(refused, 0);
  for (const auto& [offset, bytes] : taken) space.Give(offset, bytes);
  EXPECT_EQ(space.Take(kBytes), 0U);
  EXPECT_EQ(space.Take(1), std::nullopt);
}

TEST(SharedArea, BothSidesSeeItAndItsSizeIsSealed) {
  const AreaSizes sizes{.append_bytes = 8192, .reply_bytes = 4096};
  auto server = SharedArea::Create(sizes);
  ASSERT_TRUE(server.ok()) << server.status().message();
  EXPECT_NE(ftruncate((*server)->fd(), 0), 0);
  EXPECT_NE(ftruncate((*server)->fd(), 1 << 20), 0);
  auto client = SharedArea::Map(Fd(dup((*server)->fd())), sizes);
  ASSERT_TRUE(client.ok()) << client.status().message();
  *(*client)->Append(8191, 1) = 'a';
  *(*server)->Reply(0, 1) = 'r';
  EXPECT_EQ(*(*server)->Append(8191, 1), 'a');
  EXPECT_EQ(*(*client)->Reply(0, 1), 'r');
}

TEST(SharedArea, NothingOutsideOfAPart) {
  auto area = SharedArea::Create({.append_bytes = 8192, .reply_bytes = 4096});
  ASSERT_TRUE(area.ok());
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  for (const auto& [offset, bytes] : std::map<uint64_t, uint64_t>{
           {0, 8193}, {1, 8192}, {8192, 1}, {8193, 0}, {kHuge, 1}, {kHuge - 1, 2}, {2, kHuge}}) {
    EXPECT_EQ((*area)->Append(offset, bytes), nullptr) << offset << " " << bytes;
    EXPECT_EQ((*area)->Reply(offset, bytes), nullptr) << offset << " " << bytes;
  }
  EXPECT_NE((*area)->Append(0, 8192), nullptr);
  EXPECT_NE((*area)->Reply(4095, 1), nullptr);
}

TEST(SharedArea, AClientMapsOnlySealedMemoryOfTheSizeThatWasSaid) {
  const AreaSizes sizes{.append_bytes = 4096, .reply_bytes = 4096};
  EXPECT_EQ(SharedArea::Map(Fd(), sizes).status().code(), StatusCode::kDataLoss);
  Fd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(SharedArea::Map(std::move(unsealed), sizes).status().code(), StatusCode::kDataLoss);
  Fd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(SharedArea::Map(std::move(file), sizes).status().code(), StatusCode::kDataLoss);
  auto other = SharedArea::Create({.append_bytes = 4096});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(SharedArea::Map(Fd(dup((*other)->fd())), sizes).status().code(), StatusCode::kDataLoss);
}

TEST(SharedArea, ADescriptorComesWithTheFirstByte) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const Fd a(sockets[0]);
  Fd b(sockets[1]);
  auto area = SharedArea::Create({.append_bytes = 4096});
  ASSERT_TRUE(area.ok());
  ASSERT_EQ(SendWithFd(a.get(), "hello", (*area)->fd()), 5);
  std::string bytes(5, '\0');
  Fd received;
  ASSERT_EQ(ReceiveWithFd(b.get(), bytes.data(), 2, &received), 2);
  EXPECT_TRUE(SharedArea::Map(std::move(received), {.append_bytes = 4096}).ok());
  Fd none;
  ASSERT_EQ(ReceiveWithFd(b.get(), bytes.data() + 2, 3, &none), 3);
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(bytes, "hello");
  b.Close();
  EXPECT_EQ(SendWithFd(a.get(), "hello", (*area)->fd()), -1);
}

}  // namespace
}  // namespace forebay::buffer
