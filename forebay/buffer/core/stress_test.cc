// Many threads over one buffer with small segments, so that rolling, recycling, moving, snapshots
// and the dropping of memory race with appends and reads. It is for the sanitizers, and for what no
// single thread shows: nothing lost, nothing given to two readers, and no hang.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

constexpr int kWriters = 6;

// FOREBAY_SOAK_SECONDS=600 for a soak.
double SecondsAsked(double otherwise) {
  const char* asked = std::getenv("FOREBAY_SOAK_SECONDS");
  return asked == nullptr ? otherwise : std::strtod(asked, nullptr);
}

int64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  int64_t pages = 0, resident = 0;
  if (file != nullptr) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * 4096;
}

// What was given to somebody for good.
class Given {
 public:
  void Add(int64_t id) {
    MutexLock lock(mutex_);
    EXPECT_TRUE(ids_.insert(id).second) << id << " was given to two readers";
  }
  int64_t count() const {
    MutexLock lock(mutex_);
    return std::ssize(ids_);
  }

 private:
  mutable Mutex mutex_;
  std::set<int64_t> ids_ FB_GUARDED_BY(mutex_);
};

class Stress {
 public:
  explicit Stress(const BufferOptions& options) : options_(options) {
    Result<std::unique_ptr<Buffer>> buffer = Buffer::Open(options, 0, {}, nullptr);
    EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
    buffer_ = std::move(*buffer);
  }

  void Run(double seconds) {
    end_ = In(seconds);
    std::vector<std::thread> writers, readers;
    for (int i = 0; i < kWriters; ++i) writers.emplace_back([this, i] { Write(i); });
    readers.emplace_back([this] { Learn(); });
    readers.emplace_back([this] { Read(Selector::kOldest); });
    readers.emplace_back([this] { Read(Selector::kUniform); });
    readers.emplace_back([this] { Look(); });
    for (std::thread& writer : writers) writer.join();
    // The readers take what is left.
    const TimePoint patience = In(60);
    while (given_.count() < acknowledged_ && Now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    stop_ = true;
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(given_.count(), acknowledged_);
    const Ledger ledger = buffer_->ledger();
    EXPECT_TRUE(ledger.balanced());
    EXPECT_EQ(ledger.trained, acknowledged_);
    EXPECT_GT(acknowledged_, 100);
    std::printf("%ld acknowledged, %ld bytes resident at most\n",
                static_cast<long>(acknowledged_.load()), static_cast<long>(resident_max_.load()));
  }
  int64_t acknowledged() const { return acknowledged_; }
  int64_t resident_max() const { return resident_max_; }

 private:
  // A slow disk is given time to store a little.
  bool Over() const {
    const TimePoint now = Now();
    return now >= end_ && (acknowledged_ > 100 || now >= end_ + FromSeconds(300));
  }

  // Half of them wait for each append, the others have several under way.
  void Write(int writer) {
    Rng rng(static_cast<uint64_t>(writer));
    std::atomic<int> under_way{0};
    while (!Over()) {
      const int64_t n = next_.fetch_add(1);
      const TrajectoryId id{.trajectory_id = n, .group_id = n};
      const std::string encoded =
          Encode(SimpleTrajectory(id, 0, 4, static_cast<int32_t>(1 + rng.Below(1000))));
      const AppendOptions append{.deadline = In(60)};
      if (writer % 2 == 0) {
        const Status status = buffer_->AppendEncodedAndWait(encoded, append);
        EXPECT_TRUE(status.ok()) << status.ToString();
        if (status.ok()) ++acknowledged_;
        continue;
      }
      ++under_way;
      buffer_->AppendEncoded(encoded, append, [this, &under_way](const Status& status) {
        EXPECT_TRUE(status.ok()) << status.ToString();
        if (status.ok()) ++acknowledged_;
        --under_way;
      });
      while (under_way > 8) std::this_thread::yield();
    }
    while (under_way > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  void Learn() {
    while (!stop_) {
      const Result<Batch> batch = buffer_->Lease(4, 0, In(0.1));
      if (!batch.ok()) {
        EXPECT_EQ(batch.status().code(), StatusCode::kDeadlineExceeded);
        if (stop_ || !Over()) continue;
        LearnRest();
        continue;
      }
      Train(*batch);
    }
  }
  void LearnRest() {
    const Result<Batch> rest = buffer_->Lease(1, 0, In(0.05));
    if (rest.ok()) Train(*rest);
  }
  void Train(const Batch& batch) {
    for (const TrajectoryPtr& t : batch.trajectories) {
      EXPECT_TRUE(Validate(*t).ok());
      given_.Add(t->id.trajectory_id);
    }
    const Result<Batch> again = buffer_->ReadBatch(batch.sequence, 0, 2);
    EXPECT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_TRUE(buffer_->MarkTrained(batch.sequence).ok());
    EXPECT_TRUE(buffer_->Commit(batch.sequence).ok());
  }

  void Read(Selector selector) {
    Rng rng(99);
    while (!stop_) {
      const Result<Taken> taken =
          buffer_->Take({.groups = Over() ? 1 : 3, .selector = selector}, In(0.05));
      if (!taken.ok()) {
        EXPECT_EQ(taken.status().code(), StatusCode::kDeadlineExceeded);
        continue;
      }
      if (rng.Below(4) == 0) {
        EXPECT_TRUE(buffer_->GiveBack(taken->take_id).ok());
        continue;
      }
      for (const TrajectoryView& view : taken->trajectories) {
        const Result<Trajectory> t = Decode(view.encoded);
        EXPECT_TRUE(t.ok() && t->id == view.id);
        given_.Add(view.id.trajectory_id);
      }
      EXPECT_TRUE(buffer_->Acknowledge(taken->take_id).ok());
    }
  }

  void Look() {
    while (!stop_) {
      EXPECT_TRUE(buffer_->ledger().balanced());
      const BufferStats stats = buffer_->stats();
      EXPECT_LE(stats.disk_bytes, options_.disk_bytes_max);
      buffer_->Inspect(0, 10);
      resident_max_ = std::max(resident_max_.load(), ResidentBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  const BufferOptions options_;
  std::unique_ptr<Buffer> buffer_;
  TimePoint end_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> next_{1}, acknowledged_{0}, resident_max_{0};
  Given given_;
};

class StressTest : public testing::TestWithParam<Durability> {
 protected:
  BufferOptions Options() const {
    return {.folder = folder_.path() + "/log",
            .durability = GetParam(),
            .group_size = 1,
            .segment_bytes = int64_t{128} << 10,
            .memory_bytes_max = int64_t{2} << 20,
            .disk_bytes_max = int64_t{2} << 20,
            .record_bytes_max = 20000,
            .implied_dispatch = true};
  }
  TestFolder folder_;
};

TEST_P(StressTest, ManyThreadsOverSmallSegmentsLoseNothing) {
  Stress stress(Options());
  stress.Run(SecondsAsked(1.5));
  // A soak must not grow: what is given back, recycled and forgotten is really gone. (The set of
  // what was given is the test's own: some 48 bytes each.)
  EXPECT_LT(stress.resident_max(), (int64_t{512} << 20) + 100 * stress.acknowledged());
}

INSTANTIATE_TEST_SUITE_P(Durabilities, StressTest,
                         testing::Values(Durability::kMemory, Durability::kOs, Durability::kSync),
                         [](const testing::TestParamInfo<Durability>& info) {
                           return std::string(info.param == Durability::kMemory ? "Memory"
                                              : info.param == Durability::kOs   ? "Os"
                                                                                : "Sync");
                         });

}  // namespace
}  // namespace forebay::buffer
