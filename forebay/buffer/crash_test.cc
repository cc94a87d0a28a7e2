// kill -9 of a writing process, at random points: what was acknowledged is there afterwards, and
// the ledger balances.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

constexpr int64_t kGroupsMax = 1 << 18;
constexpr int32_t kGroupSize = 2;

// What the child tells the parent, in memory that outlives it.
struct Shared {
  std::atomic<int64_t> acknowledged_count;
  std::atomic<uint8_t> acknowledged[kGroupsMax * kGroupSize];  // by group and member
  std::atomic<int64_t> leased;                                 // the last batch that Lease returned
  std::atomic<int64_t> checkpoint;  // the last batch whose checkpoint is durable
};

size_t Index(const TrajectoryId& id) {
  return static_cast<size_t>(id.group_id * kGroupSize + id.member);
}

BufferOptions Options(const std::string& folder, Durability durability) {
  return {.folder = folder,
          .durability = durability,
          .group_size = kGroupSize,
          .max_staleness = 1000,
          .segment_bytes = 1 << 15};
}

// Plays groups until it is killed.
[[noreturn]] void Child(const std::string& folder, Durability durability, int64_t first_group,
                        Shared* shared) {
  Recovery recovery;
  auto opened = Buffer::Open(Options(folder, durability), shared->checkpoint, {}, &recovery);
  if (!opened.ok()) ::_exit(3);
  Buffer& buffer = **opened;
  std::atomic<int64_t> next_group{first_group};
  std::vector<std::thread> actors;
  for (int a = 0; a < 3; ++a) {
    actors.emplace_back([&] {
      while (true) {
        const int64_t group = next_group++;
        while (group >= kGroupsMax) ::pause();  // a fast machine: the kill comes
        for (int32_t member = 0; member < kGroupSize; ++member) {
          // Ids grow over the attempts of all processes.
          TrajectoryId id = TestId(group, member);
          if (!buffer.Dispatch(id).ok()) ::_exit(5);
          if (!AppendAndWait(buffer, SimpleTrajectory(id, 1)).ok()) ::_exit(6);
          shared->acknowledged[Index(id)] = 1;
          ++shared->acknowledged_count;
        }
      }
    });
  }
  while (true) {
    const Result<Batch> batch = buffer.Lease(2, 1, In(60));
    if (!batch.ok()) {
      std::fprintf(stderr, "child: %s\n", batch.status().ToString().c_str());
      ::_exit(7);
    }
    shared->leased = batch->sequence;
    if (!buffer.MarkTrained(batch->sequence).ok()) ::_exit(8);
    if (batch->sequence % 3 == 0) {
      shared->checkpoint = batch->sequence;
      if (!buffer.Commit(batch->sequence).ok()) ::_exit(9);
    }
  }
}

class CrashTest : public testing::TestWithParam<Durability> {};

TEST_P(CrashTest, D2_AcknowledgedSurvivesKillAndTheLedgerBalances) {
  TestFolder folder;
  const std::string log = folder.path() + "/log";
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* shared = new (memory) Shared{};
  Rng rng(7);
  int64_t first_group = 0, consumed = 0;
  for (int round = 0; round < 20; ++round) {
    const int64_t before = shared->acknowledged_count;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) Child(log, GetParam(), first_group, shared);
    // Not by the clock alone: some rounds end after some appends, however slow the machine is.
    const int64_t appends = 1 + static_cast<int64_t>(rng.Below(60));
    int status = 0;
    while (shared->acknowledged_count - before < appends &&
           ::waitpid(child, &status, WNOHANG) == 0) {
      ::usleep(static_cast<useconds_t>(rng.Below(500)));
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended with " << WEXITSTATUS(status);

    Recovery recovery;
    auto opened = Buffer::Open(Options(log, GetParam()), shared->checkpoint, {}, &recovery);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    const Ledger ledger = (*opened)->ledger();
    EXPECT_TRUE(ledger.balanced());
    EXPECT_EQ(ledger.in_flight, 0);
    SCOPED_TRACE(fmt::format("round {}: {}", round, fmt::join(recovery.notes, "; ")));
    EXPECT_EQ(recovery.quarantined_records, 0);
    consumed = shared->checkpoint * 2 * kGroupSize;
    EXPECT_EQ(ledger.trained, consumed) << shared->checkpoint << " leased " << shared->leased;
    EXPECT_GE(ledger.trained + ledger.pending, shared->acknowledged_count);
    EXPECT_GE(recovery.replay_batches, shared->leased - shared->checkpoint);
    // A member that was acknowledged is not asked for again.
    for (const MissingMember& m : recovery.missing) {
      EXPECT_EQ(shared->acknowledged[Index({.group_id = m.group_id, .member = m.member})], 0)
          << "group " << m.group_id << " member " << m.member;
    }
    first_group = recovery.next_group_id;
    (*opened)->Close();
  }
  EXPECT_GT(shared->acknowledged_count, 100);
  EXPECT_GT(consumed, 0);
  ::munmap(memory, sizeof(Shared));
}

INSTANTIATE_TEST_SUITE_P(Durabilities, CrashTest,
                         testing::Values(Durability::kOs, Durability::kSync));

}  // namespace
}  // namespace forebay::buffer
