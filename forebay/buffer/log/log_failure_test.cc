// What a Log says of its records when a write fails while others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/file_testing.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The first durable write waits until it is told to fail; all others succeed.
struct FirstWriteFails {
  std::atomic<int> writes{0};
  std::atomic<bool> may_fail{false};
};

class OneBadWriteFile : public LogFile {
 public:
  OneBadWriteFile(std::unique_ptr<LogFile> file, FirstWriteFails* first)
      : file_(std::move(file)), first_(first) {}
  Status WriteDurable(int64_t offset, std::string_view bytes) override {
    if (first_->writes.fetch_add(1) > 0) return file_->WriteDurable(offset, bytes);
    while (!first_->may_fail) std::this_thread::yield();
    // To copy it takes milliseconds: whoever writes next may do so before the failure is noted, if
    // it is noted apart from the end of the write.
    constexpr size_t kLong = size_t{16} << 20;
    return Internal("no such luck" + std::string(kLong, '.'));
  }
  Status Write(int64_t offset, std::string_view bytes) override {
    return file_->Write(offset, bytes);
  }
  Status Sync() override { return file_->Sync(); }
  Result<char*> Map() override { return file_->Map(); }
  Status ReadAt(int64_t offset, char* out, size_t bytes) override {
    return file_->ReadAt(offset, out, bytes);
  }
  int64_t bytes() const override { return file_->bytes(); }

 private:
  const std::unique_ptr<LogFile> file_;
  FirstWriteFails* const first_;
};

class OneBadWriteDisk : public SimDisk {
 public:
  explicit OneBadWriteDisk(FirstWriteFails* first) : SimDisk(1), first_(first) {}
  Result<std::unique_ptr<LogFile>> Create(const std::string& path, int64_t bytes,
                                          bool written) override {
    FB_ASSIGN_OR_RETURN(std::unique_ptr<LogFile> file, SimDisk::Create(path, bytes, written));
    return std::unique_ptr<LogFile>(std::make_unique<OneBadWriteFile>(std::move(file), first_));
  }

 private:
  FirstWriteFails* const first_;
};

// What the log said of its records.
class Owner {
 public:
  LogCallbacks Callbacks() {
    return {.on_acknowledged = [this] { Take(); },
            .on_failure = [this] { ++failures_; },
            .on_work = [] {}};
  }
  void Own(Log* log) { log_ = log; }
  std::map<int64_t, bool> durable() const {
    const MutexLock lock(mutex_);
    return durable_;
  }
  int failures() const { return failures_; }

 private:
  void Take() {
    Log::Acknowledged acknowledged;
    log_->TakeAcknowledged(&acknowledged);
    {
      const MutexLock lock(mutex_);
      for (const LogEntry& e : acknowledged.entries) durable_[e.header.trajectory_id] = e.durable;
    }
    Log::Wake(acknowledged);
  }

  Log* log_ = nullptr;
  std::atomic<int> failures_{0};
  mutable Mutex mutex_;
  std::map<int64_t, bool> durable_ FB_GUARDED_BY(mutex_);
};

LogSlot Put(Log& log, int64_t trajectory_id) {
  RecordHeader header{.type = RecordType::kTrajectory};
  header.SetId({.trajectory_id = trajectory_id});
  LogSlot slot;
  const std::string payload(100, 'x');
  EXPECT_TRUE(log.Reserve(Log::Kind::kTrajectory, header, payload.size(), 0, {}, &slot));
  log.Fill(slot, payload);
  return slot;
}

// Sequences are cumulative: a later group that is written must not vouch for one that was not.
TEST(LogFailure, NoLaterGroupIsAcknowledgedOverOneThatFailed) {
  for (int round = 0; round < 5; ++round) {
    FirstWriteFails first;
    OneBadWriteDisk disk(&first);
    ASSERT_TRUE(disk.MakeFolder("log").ok());
    Owner owner;
    // Without threads of its own: who waits writes.
    Result<std::unique_ptr<Log>> log = Log::Open(
        &disk, {.folder = "log", .segment_bytes = 1 << 16, .manual = true}, owner.Callbacks());
    ASSERT_TRUE(log.ok()) << log.status().ToString();
    owner.Own(log->get());
    const LogSlot lost = Put(**log, 1);
    std::thread loser([&] { EXPECT_TRUE((*log)->Await(lost.group, In(600))); });
    while (first.writes == 0) std::this_thread::yield();
    const LogSlot later = Put(**log, 2);
    ASSERT_NE(lost.group, later.group);
    first.may_fail = true;
    while (!(*log)->Await(later.group, Now())) {  // writes as soon as nobody else does
    }
    loser.join();
    EXPECT_EQ(owner.durable(), (std::map<int64_t, bool>{{1, false}, {2, false}}));
    EXPECT_EQ(first.writes, 1);
    EXPECT_EQ(owner.failures(), 1);
    EXPECT_THAT((*log)->failed().message(),
                AllOf(HasSubstr("takes no more records"), HasSubstr("no such luck")));
    EXPECT_FALSE((*log)->Flush().ok());
  }
}

}  // namespace
}  // namespace forebay::buffer
