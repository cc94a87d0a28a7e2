// What a failing disk does to a live buffer: refusal with the reason, no lie, and no hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/file_testing.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

using testing::HasSubstr;

class FaultTest : public testing::Test {
 protected:
  // With threads, as in production.
  void Open(int64_t committed = 0) {
    core_.reset();
    disk_.Restart();
    Recovery recovery;
    Result<std::unique_ptr<Core>> core = Core::Open(
        &disk_,
        {.folder = "log", .group_size = 2, .segment_bytes = 1 << 14, .disk_bytes_max = 1 << 20},
        committed, events_.Listener(), &recovery);
    ASSERT_TRUE(core.ok()) << core.status().ToString();
    core_ = std::move(*core);
  }
  // The keeper tells of it.
  void WaitForFailure() const {
    for (const TimePoint late = In(30); events_.Failures().empty() && Now() < late;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  SimDisk disk_{1};
  Events events_;
  std::unique_ptr<Core> core_;
};

TEST_F(FaultTest, AfterAFailedWriteNothingIsAcknowledgedAndReadsGoOn) {
  Open();
  ASSERT_TRUE(PlayGroup(*core_, 0, 2, 1).ok());
  ASSERT_TRUE(core_->Dispatch(TestId(1, 0)).ok());
  ASSERT_TRUE(core_->Dispatch(TestId(1, 1)).ok());
  disk_.SetFaults({.write_error = 1000});
  const Status refused = AppendAndWait(*core_, SimpleTrajectory(TestId(1, 0), 1));
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("sealed and never retried"));
  WaitForFailure();
  ASSERT_EQ(events_.Failures().size(), 1U);
  disk_.SetFaults({});  // too late: the device may have dropped what it was given
  EXPECT_EQ(AppendAndWait(*core_, SimpleTrajectory(TestId(1, 1), 1)).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(core_->Dispatch(TestId(2, 0)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(core_->Lease(1, 1, In(60)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(core_->ledger().pending, 2);
  EXPECT_TRUE(core_->ledger().balanced());
  disk_.PowerLoss();
  Open();
  EXPECT_GE(core_->ledger().pending, 2);
  EXPECT_TRUE(core_->Lease(1, 1, In(60)).ok());
}

// What needs no record: batches whose lease is in the log, and takes, which are at least once.
TEST_F(FaultTest, AfterAFailedWriteWhatIsThereCanStillBeRead) {
  Open();
  for (int64_t group = 0; group < 4; ++group) ASSERT_TRUE(PlayGroup(*core_, group, 2, 1).ok());
  ASSERT_TRUE(core_->Lease(1, 1, In(60)).ok());
  core_->Close();
  disk_.Kill();
  Open();  // the first batch is a replay
  ASSERT_TRUE(core_->Dispatch(TestId(4, 0)).ok());
  disk_.SetFaults({.write_error = 1000});
  EXPECT_EQ(AppendAndWait(*core_, SimpleTrajectory(TestId(4, 0), 1)).code(),
            StatusCode::kUnavailable);
  WaitForFailure();
  const Result<Batch> replay = core_->Lease(1, 1, In(60));
  ASSERT_TRUE(replay.ok()) << replay.status().ToString();
  EXPECT_TRUE(replay->replay);
  EXPECT_EQ(core_->ReadBatch(1, 0, 1)->trajectories.size(), 2U);
  EXPECT_TRUE(core_->MarkTrained(1).ok());
  EXPECT_EQ(core_->Lease(1, 1, In(60)).status().code(), StatusCode::kUnavailable);
  const Result<Taken> taken = core_->Take({.groups = 2}, In(60));
  ASSERT_TRUE(taken.ok()) << taken.status().ToString();
  EXPECT_EQ(taken->trajectories.size(), 4U);
  EXPECT_EQ(core_->Acknowledge(taken->take_id).code(), StatusCode::kUnavailable);
  // At once: nothing more will come.
  EXPECT_EQ(core_->Take({.groups = 2}, In(600)).status().code(), StatusCode::kUnavailable);
  // The checkpoint is the truth about the batch, not the log that could not be told.
  Open(1);
  EXPECT_EQ(core_->ledger().trained, 2);
  // The write that failed may have reached the disk: what nobody was told of may be there.
  EXPECT_GE(core_->ledger().pending, 6);
  EXPECT_LE(core_->ledger().pending, 7);
  EXPECT_TRUE(core_->ledger().balanced());
}

TEST_F(FaultTest, AWriteErrorFailsTheLogAndWakesTheLearner) {
  Open();
  ASSERT_TRUE(core_->Dispatch(TestId(0, 0)).ok());
  disk_.SetFaults({.write_error = 1000});
  EXPECT_EQ(AppendAndWait(*core_, SimpleTrajectory(TestId(0, 0), 1)).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(core_->Lease(1, 1, In(600)).status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(events_.Failures().at(0).message(), HasSubstr("cannot write"));
}

TEST_F(FaultTest, AFullDiskRefusesAndGoesOnWhenThereIsSpace) {
  Open();
  disk_.SetFaults({.create_full = 1000});
  // Until the segments that are there already are full.
  int64_t groups = 0;
  Status refused;
  while (refused.ok()) {
    ASSERT_LT(groups, 2000);
    ASSERT_TRUE(core_->Dispatch(TestId(groups, 0)).ok());
    ASSERT_TRUE(core_->Dispatch(TestId(groups, 1)).ok());
    refused = AppendAndWait(*core_, SimpleTrajectory(TestId(groups, 0), 1), 0.3);
    if (!refused.ok()) break;
    refused = AppendAndWait(*core_, SimpleTrajectory(TestId(groups, 1), 1), 0.3);
    if (refused.ok()) ++groups;
  }
  EXPECT_EQ(refused.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(refused.message(), HasSubstr("the buffer stayed full"));
  EXPECT_THAT(refused.message(), HasSubstr("No space left on device"));
  // Readers, and notes, go on.
  ASSERT_TRUE(core_->Reject(TestId(groups, 1), RejectReason::kOutcome).ok());
  EXPECT_EQ(core_->Lease(1, 1, In(60))->sequence, 1);
  EXPECT_TRUE(core_->ledger().balanced());
  EXPECT_TRUE(events_.Failures().empty());
  disk_.SetFaults({});
  ASSERT_TRUE(PlayGroup(*core_, groups + 1, 2, 1).ok());
  ASSERT_TRUE(core_->Commit(1).ok());
  core_->Close();  // flushed
  disk_.Kill();
  Open(1);
  const Ledger ledger = core_->ledger();
  EXPECT_EQ(ledger.trained, 2);
  EXPECT_EQ(ledger.dispatched, 2 * groups + 4);
  EXPECT_GE(ledger.pending, 2 * groups);
  EXPECT_EQ(ledger.rejected[static_cast<size_t>(RejectReason::kOutcome)], 1);
  EXPECT_TRUE(ledger.balanced());
}

TEST_F(FaultTest, TooManyOpenFilesLoseNothing) {
  Open();
  for (int64_t group = 0; group < 3; ++group) ASSERT_TRUE(PlayGroup(*core_, group, 2, 1).ok());
  disk_.Kill();
  Open();  // from here on the segment is read from the disk
  disk_.SetFaults({.open_full = 1000});
  EXPECT_EQ(core_->Lease(1, 1, In(60)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(core_->Take({.groups = 1}, In(60)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(core_->ledger().pending, 6);
  EXPECT_TRUE(events_.Rejected(RejectReason::kQuarantined).empty());
  core_.reset();
  disk_.Restart();
  disk_.SetFaults({.open_full = 1000});
  Recovery recovery;
  const BufferOptions options{
      .folder = "log", .group_size = 2, .segment_bytes = 1 << 14, .disk_bytes_max = 1 << 20};
  const auto refused = Core::Open(&disk_, options, 0, events_.Listener(), &recovery);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  Open();
  EXPECT_EQ(core_->ledger().pending, 6);
  EXPECT_TRUE(core_->Take({.groups = 1}, In(60)).ok());
  const Result<Batch> batch = core_->Lease(2, 1, In(60));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->sequence, 1);
}

TEST_F(FaultTest, ADiskThatCannotOpenIsAnErrorOfOpen) {
  disk_.SetFaults({.create_full = 1000});
  Recovery recovery;
  const auto core = Core::Open(&disk_, {.folder = "log"}, 0, events_.Listener(), &recovery);
  EXPECT_EQ(core.status().code(), StatusCode::kResourceExhausted);
}

// A reader that comes back after a restart of the buffer must not end a take of somebody else.
TEST_F(FaultTest, ALateAcknowledgementFindsNoTakeOfTheNextProcess) {
  Open();
  for (int64_t group = 0; group < 2; ++group) ASSERT_TRUE(PlayGroup(*core_, group, 2, 1).ok());
  const int64_t before = core_->Take({.groups = 1}, In(60))->take_id;
  disk_.Kill();
  Open();
  const int64_t now = core_->Take({.groups = 1}, In(60))->take_id;
  EXPECT_GT(now, before);
  EXPECT_EQ(core_->Acknowledge(before).code(), StatusCode::kNotFound);
  EXPECT_EQ(core_->GiveBack(before).code(), StatusCode::kNotFound);
  EXPECT_EQ(core_->ledger().trained, 0);
  EXPECT_TRUE(core_->Acknowledge(now).ok());
  core_->Close();  // flushed
  // Nor after several starts that did nothing else.
  for (int start = 0; start < 3; ++start) {
    disk_.Kill();
    Open();
  }
  const int64_t later = core_->Take({.groups = 1}, In(60))->take_id;
  EXPECT_EQ(core_->Acknowledge(now).code(), StatusCode::kNotFound);
  EXPECT_TRUE(core_->Acknowledge(later).ok());
  EXPECT_EQ(core_->ledger().trained, 4);
}

// Nothing can be lost with a segment that never had a record.
TEST_F(FaultTest, AHeaderDamagedBeforeTheFirstRecordIsNoLoss) {
  ASSERT_TRUE(disk_.MakeFolder("log").ok());
  const std::string path = "log/segment-0000000009.log";
  const auto file = disk_.Create(path, 1 << 16, false);
  ASSERT_TRUE((*file)->Write(0, "not the header of a segment").ok());
  Recovery recovery;
  const auto core =
      Core::Open(&disk_, {.folder = "log", .segment_bytes = 1 << 16}, 0, {}, &recovery, true);
  ASSERT_TRUE(core.ok()) << core.status().ToString();
  EXPECT_THAT(recovery.notes, testing::Contains(HasSubstr("never had a record")));
  EXPECT_EQ(recovery.quarantined_records, 0);
  EXPECT_EQ(disk_.List("log/quarantine")->size(), 1U);
  EXPECT_FALSE(disk_.Open(path).ok());
}

// As somebody who copies files to and fro makes it.
TEST_F(FaultTest, ASecondFileOfASegmentIsPassedOverAndNamed) {
  Open();
  ASSERT_TRUE(PlayGroup(*core_, 0, 2, 1).ok());
  core_.reset();
  std::string original;  // the only one: a clean end removes the spares
  const Result<std::vector<std::string>> names = disk_.List("log");
  for (const std::string& name : *names) {
    if (ParseSegmentName(name)) original = name;
  }
  std::string bytes = *disk_.Read("log/" + original);
  for (size_t at = kDataBegin; at < bytes.size(); ++at) bytes[at] = '\0';
  {
    const auto copy =
        disk_.Create("log/" + SegmentName(900), static_cast<int64_t>(bytes.size()), false);
    ASSERT_TRUE((*copy)->Write(0, bytes).ok());
  }
  disk_.Restart();
  Recovery recovery;
  const auto core = Core::Open(&disk_, {.folder = "log", .group_size = 2, .segment_bytes = 1 << 14},
                               0, {}, &recovery, true);
  ASSERT_TRUE(core.ok()) << core.status().ToString();
  EXPECT_EQ((*core)->ledger().pending, 2);
  EXPECT_THAT(recovery.notes,
              testing::ElementsAre(HasSubstr(SegmentName(900) + " is segment 1, as " + original +
                                             " is: it was passed over")));
}

TEST_F(FaultTest, SegmentsThatTheToolsCannotReadAreRefused) {
  const auto core = Core::Open(&disk_, {.folder = "log", .segment_bytes = (int64_t{2} << 30) + 1},
                               0, events_.Listener(), nullptr);
  EXPECT_EQ(core.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(core.status().message(), HasSubstr("segment_bytes is 2147483649: 1 to 2147483648"));
}

TEST(Listener, MayCallBackBecauseNoLockIsHeld) {
  std::unique_ptr<Buffer> buffer;
  BufferListener listener;
  listener.on_rejected = [&](const TrajectoryId& id, RejectReason) {
    EXPECT_TRUE(buffer->Dispatch(TestId(id.group_id, id.member, id.attempt + 1)).ok());
    EXPECT_TRUE(buffer->ledger().balanced());
  };
  Recovery recovery;
  buffer =
      *Buffer::Open({.durability = Durability::kMemory, .group_size = 2}, 0, listener, &recovery);
  ASSERT_TRUE(buffer->Dispatch(TestId(0, 0)).ok());
  ASSERT_TRUE(buffer->Reject(TestId(0, 0), RejectReason::kOutcome).ok());
  EXPECT_EQ(buffer->ledger().in_flight, 1);
}

}  // namespace
}  // namespace forebay::buffer
