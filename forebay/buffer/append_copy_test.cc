// An attempt that is ended in the middle of its append's copy.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

constexpr size_t kPage = 4096;

// Bytes whose second page (tokens, which only the copy reads) stops whoever reads it until Release.
// One at a time.
class StoppingBytes {
 public:
  explicit StoppingBytes(std::string_view content)
      : size_(content.size()), mapped_((content.size() + kPage - 1) / kPage * kPage) {
    at_ = static_cast<char*>(
        ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::ranges::copy(content, at_);
    reached_ = false;
    released_ = false;
    stopping_page_ = at_ + kPage;
    struct sigaction action{};
    action.sa_handler = [](int) {
      reached_ = true;
      while (!released_) {
      }
      ::mprotect(stopping_page_, kPage, PROT_READ);
    };
    ::sigaction(SIGSEGV, &action, &before_);
    ::mprotect(stopping_page_, kPage, PROT_NONE);
  }
  ~StoppingBytes() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(at_, mapped_);
  }
  StoppingBytes(const StoppingBytes&) = delete;
  StoppingBytes& operator=(const StoppingBytes&) = delete;

  std::string_view view() const { return {at_, size_}; }
  static void WaitUntilReached() {
    while (!reached_) std::this_thread::yield();
  }
  static void Release() { released_ = true; }

 private:
  static inline std::atomic<bool> reached_, released_;  // the handler's
  static inline char* stopping_page_;

  const size_t size_, mapped_;
  char* at_ = nullptr;
  struct sigaction before_{};
};

class AppendCopyTest : public testing::TestWithParam<Durability> {};

TEST_P(AppendCopyTest, D2_TwinsOfAnAttemptThatEndsMeanwhileAreToldTheSame) {
  const TestFolder folder;
  Result<std::unique_ptr<Buffer>> buffer = Buffer::Open({.folder = folder.path() + "/log",
                                                         .durability = GetParam(),
                                                         .group_size = 1,
                                                         .segment_bytes = 1 << 17,
                                                         .implied_dispatch = true},
                                                        0, {}, nullptr);
  ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
  const TrajectoryId id = TestId(0, 0);
  const std::string encoded = Encode(SimpleTrajectory(id, 1, 4000, 8));
  ASSERT_GT(encoded.size(), 3 * kPage);
  const StoppingBytes bytes(encoded);
  Status first;
  std::thread appends(
      [&] { first = (*buffer)->AppendEncodedAndWait(bytes.view(), {.deadline = In(600)}); });
  StoppingBytes::WaitUntilReached();
  std::vector<Status> twin;
  (*buffer)->AppendEncoded(encoded, {.deadline = In(600)},
                           [&](const Status& status) { twin.push_back(status); });
  EXPECT_TRUE(twin.empty());  // told together with the first
  EXPECT_TRUE((*buffer)->Reject(id, RejectReason::kOutcome).ok());
  StoppingBytes::Release();
  appends.join();
  (*buffer)->Close();
  EXPECT_EQ(first.code(),
            GetParam() == Durability::kSync ? StatusCode::kNotFound : StatusCode::kOk);
  EXPECT_EQ(twin, std::vector<Status>{first});
  const Ledger ledger = (*buffer)->ledger();
  EXPECT_EQ(ledger.late, 1);
  EXPECT_EQ(ledger.pending, 0);
  EXPECT_TRUE(ledger.balanced());
}

INSTANTIATE_TEST_SUITE_P(Durabilities, AppendCopyTest,
                         testing::Values(Durability::kMemory, Durability::kOs, Durability::kSync),
                         [](const testing::TestParamInfo<Durability>& info) {
                           return std::string(info.param == Durability::kMemory ? "Memory"
                                              : info.param == Durability::kOs   ? "Os"
                                                                                : "Sync");
                         });

}  // namespace
}  // namespace forebay::buffer
