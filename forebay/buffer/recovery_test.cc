// What comes back after a restart: nothing that was acknowledged is lost, the same batches are
// replayed, damage is named and kept apart, and the ledger balances.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class RecoveryTest : public testing::Test {
 protected:
  RecoveryTest() {
    options_.folder = folder_.path() + "/log";
    options_.durability = Durability::kOs;
    options_.group_size = 2;
    options_.segment_bytes = 1 << 20;
  }
  Buffer& Open(int64_t committed = 0) {
    buffer_.reset();
    Result<std::unique_ptr<Buffer>> buffer =
        Buffer::Open(options_, committed, events_.Listener(), &recovery_);
    EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
    if (!buffer.ok()) std::abort();
    buffer_ = std::move(*buffer);
    EXPECT_TRUE(buffer_->ledger().balanced());
    return *buffer_;
  }
  void Close() { buffer_.reset(); }
  // What a kill -9 leaves: the files as they are now, without a seal or a last state.
  void Crash() {
    const std::string copy = options_.folder + ".copy";
    fs::copy(options_.folder, copy, fs::copy_options::recursive);
    Close();
    fs::remove_all(options_.folder);
    fs::rename(copy, options_.folder);
  }
  // The used ones: number and path.
  std::vector<std::pair<uint32_t, std::string>> Segments() const {
    std::vector<std::pair<uint32_t, std::string>> paths;
    for (const auto& entry : fs::directory_iterator(options_.folder)) {
      if (ParseSegmentName(entry.path().filename().string())) {
        const Result<SegmentHeader> header = ParseSegmentHeader(*ReadFile(entry.path().string()));
        if (header.ok()) paths.emplace_back(header->number, entry.path().string());
      }
    }
    std::ranges::sort(paths);
    return paths;
  }
  // Changes bytes of the file at `path`.
  static void Damage(const std::string& path, const std::function<void(std::string&)>& change) {
    std::string bytes = *ReadFile(path);
    change(bytes);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  // Where the trajectory's record begins in its segment.
  static std::optional<ScannedRecord> FindRecord(const std::string& bytes, uint32_t segment,
                                                 RecordType type, int64_t trajectory_id = 0) {
    for (const ScannedRecord& r : ScanSegment(bytes, segment).records) {
      if (r.header.type == type && r.header.trajectory_id == trajectory_id) return r;
    }
    return std::nullopt;
  }
  size_t QuarantinedFiles() const {
    const fs::path folder = fs::path(options_.folder) / "quarantine";
    if (!fs::exists(folder)) return 0;
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  int64_t Rejected(RejectReason reason) const {
    return buffer_->ledger().rejected[static_cast<size_t>(reason)];
  }
  // Flips a bit in the record of this trajectory, in the first segment.
  void DamageTrajectory(const TrajectoryId& id, size_t at) {
    const auto [number, path] = Segments().at(0);
    Damage(path, [&, n = number](std::string& bytes) {
      const auto record = FindRecord(bytes, n, RecordType::kTrajectory, id.trajectory_id);
      ASSERT_TRUE(record.has_value());
      bytes[record->offset + at] = static_cast<char>(bytes[record->offset + at] ^ 0x10);
    });
  }

  TestFolder folder_;
  BufferOptions options_;
  Events events_;
  Recovery recovery_;
  std::unique_ptr<Buffer> buffer_;
};

TEST_F(RecoveryTest, D3_PendingTrajectoriesComeBackTheSame) {
  Buffer& first = Open();
  ASSERT_TRUE(PlayGroup(first, 0, 2, 3).ok());
  ASSERT_TRUE(PlayGroup(first, 1, 2, 4).ok());
  Buffer& second = Open();
  EXPECT_EQ(recovery_.next_group_id, 2);
  EXPECT_EQ(recovery_.next_trajectory_id, TestId(1, 1).trajectory_id + 1);
  EXPECT_TRUE(recovery_.missing.empty());
  EXPECT_TRUE(recovery_.notes.empty()) << recovery_.notes[0];
  EXPECT_EQ(recovery_.torn_tail_bytes, 0);
  EXPECT_EQ(second.ledger().pending, 4);
  EXPECT_GT(second.stats().memory_bytes, 0);
  Result<Batch> batch = second.Lease(2, 4, In(10));
  ASSERT_TRUE(batch.ok());
  EXPECT_FALSE(batch->replay);
  for (size_t i = 0; i < 4; ++i) {
    const auto group = static_cast<int64_t>(i / 2);
    EXPECT_EQ(*batch->trajectories[i],
              SimpleTrajectory(TestId(group, static_cast<int32_t>(i % 2)), 3 + group));
  }
  EXPECT_EQ(second.Dispatch(TestId(0, 0)).code(), StatusCode::kFailedPrecondition);
}

TEST_F(RecoveryTest, D2_WhatWasInFlightIsLostInCrashAndMissing) {
  Buffer& first = Open();
  ASSERT_TRUE(first.Dispatch(TestId(0, 0)).ok());
  ASSERT_TRUE(first.Reject(TestId(0, 0), RejectReason::kOutcome).ok());
  ASSERT_TRUE(first.Dispatch(TestId(0, 0, 1)).ok());
  ASSERT_TRUE(first.Dispatch(TestId(0, 1)).ok());
  ASSERT_TRUE(AppendAndWait(first, SimpleTrajectory(TestId(0, 1), 1)).ok());
  ASSERT_TRUE(first.Dispatch(TestId(1, 1)).ok());  // member 0 of group 1 was not dispatched yet
  ASSERT_TRUE(PlayGroup(first, 2, 2, 1).ok());
  ASSERT_TRUE(first.CloseGroup(2).ok());
  Buffer& second = Open();
  EXPECT_EQ(Rejected(RejectReason::kLostInCrash), 2);
  EXPECT_EQ(Rejected(RejectReason::kOutcome), 1);
  EXPECT_EQ(Rejected(RejectReason::kClosed), 2);
  EXPECT_EQ(second.ledger().dispatched, 6);
  EXPECT_THAT(
      recovery_.missing,
      ElementsAre(MissingMember{.group_id = 0, .member = 0, .next_attempt = 2, .task_id = 1000},
                  MissingMember{.group_id = 1, .member = 0, .next_attempt = 0, .task_id = 1001},
                  MissingMember{.group_id = 1, .member = 1, .next_attempt = 1, .task_id = 1001}));
  EXPECT_EQ(recovery_.next_group_id, 3);
  // The loss is counted once.
  Open();
  EXPECT_EQ(Rejected(RejectReason::kLostInCrash), 2);
  EXPECT_EQ(recovery_.missing.size(), 3U);
}

TEST_F(RecoveryTest, UncommittedBatchesAreReplayedFirstWithTheSameContent) {
  Buffer& first = Open();
  for (int64_t group = 0; group < 5; ++group)
    ASSERT_TRUE(PlayGroup(first, group, 2, group % 2).ok());
  std::vector<Batch> leased;
  for (int64_t step = 1; step <= 4; ++step) {
    leased.push_back(*first.Lease(1, step, In(10)));
    ASSERT_TRUE(first.MarkTrained(step).ok());
  }
  ASSERT_TRUE(first.Commit(1).ok());
  EXPECT_EQ(first.ledger().trained, 8);
  Buffer& second = Open(2);  // the manifest of batch 2 was durable, its Commit not yet logged
  EXPECT_EQ(recovery_.replay_batches, 2);
  EXPECT_EQ(second.ledger().trained, 4);
  EXPECT_EQ(second.ledger().pending, 6);
  for (int64_t step = 3; step <= 4; ++step) {
    // Replays come whatever is asked for and however old: the weights must become the same.
    Result<Batch> batch = second.Lease(7, 1000, In(10));
    ASSERT_TRUE(batch.ok());
    EXPECT_TRUE(batch->replay);
    EXPECT_EQ(batch->sequence, step);
    EXPECT_EQ(batch->learner_version, step);
    const Batch& before = leased[static_cast<size_t>(step - 1)];
    ASSERT_EQ(batch->trajectories.size(), before.trajectories.size());
    for (size_t i = 0; i < before.trajectories.size(); ++i) {
      EXPECT_EQ(*batch->trajectories[i], *before.trajectories[i]);
    }
    ASSERT_TRUE(second.MarkTrained(step).ok());
  }
  Result<Batch> next = second.Lease(1, 4, In(10));
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(next->replay);
  EXPECT_EQ(next->sequence, 5);
  ASSERT_TRUE(second.Commit(5).ok());
  Open(5);
  EXPECT_EQ(buffer_->ledger().trained, 10);
  EXPECT_EQ(buffer_->ledger().pending, 0);
}

TEST_F(RecoveryTest, D4_StalenessHoldsInTheFirstStepAfterResume) {
  options_.max_staleness = 1;
  Buffer& first = Open();
  ASSERT_TRUE(PlayGroup(first, 0, 2, 1).ok());
  ASSERT_TRUE(PlayGroup(first, 1, 2, 5).ok());
  Buffer& second = Open();
  Result<Batch> batch = second.Lease(1, 5, In(10));
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->trajectories[0]->id.group_id, 1);
  EXPECT_EQ(Rejected(RejectReason::kStale), 2);
}

TEST_F(RecoveryTest, AnOlderCheckpointBringsItsBatchesBack) {
  Buffer& first = Open();
  for (int64_t group = 0; group < 4; ++group) ASSERT_TRUE(PlayGroup(first, group, 2, group).ok());
  for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(first.Lease(1, step, In(10)).ok());
  ASSERT_TRUE(first.Commit(2).ok());
  Buffer& second = Open(1);
  EXPECT_EQ(second.ledger().trained, 2);
  EXPECT_EQ(second.ledger().pending, 6);
  EXPECT_EQ(recovery_.replay_batches, 2);
  EXPECT_EQ(second.Lease(1, 3, In(10))->sequence, 2);
  EXPECT_EQ(second.Lease(1, 3, In(10))->sequence, 3);
  EXPECT_EQ(second.Lease(1, 3, In(10))->trajectories[0]->id.group_id, 3);
}

TEST_F(RecoveryTest, W3_DiskAndMemoryStayBoundedAndCountsSurviveRecycling) {
  options_.segment_bytes = 1 << 16;
  options_.disk_bytes_max = 1 << 19;
  Buffer& first = Open();
  ASSERT_TRUE(first.Dispatch(TestId(0, 0)).ok());  // in flight through it all
  for (int64_t group = 1; group <= 100; ++group) {
    for (int32_t member = 0; member < 2; ++member) {
      ASSERT_TRUE(first.Dispatch(TestId(group, member)).ok());
      ASSERT_TRUE(AppendAndWait(first, SimpleTrajectory(TestId(group, member), 1, 2000, 4)).ok());
    }
    ASSERT_TRUE(first.Lease(1, 1, In(10)).ok());
    ASSERT_TRUE(first.Commit(group).ok());
  }
  EXPECT_LE(first.stats().disk_bytes, options_.disk_bytes_max);
  EXPECT_LE(first.stats().memory_bytes, options_.disk_bytes_max);
  EXPECT_LE(first.stats().kept_bytes, 2 * 10000);  // one batch, for the checkpoint before
  EXPECT_GT(Segments().back().first, 10U);         // it went through some
  EXPECT_LE(Segments().size(), 8U);
  Buffer& second = Open(100);
  EXPECT_EQ(second.ledger().trained, 200);
  EXPECT_EQ(second.ledger().dispatched, 201);
  EXPECT_EQ(Rejected(RejectReason::kLostInCrash), 1);
  EXPECT_EQ(recovery_.missing.size(),
            2U);  // of group 0: the lost one, and the one never dispatched
  EXPECT_EQ(second.Dispatch(TestId(5, 0)).code(), StatusCode::kFailedPrecondition);
  EXPECT_LE(second.stats().segments, 8);
}

TEST_F(RecoveryTest, ATornTailIsReported) {
  Open();
  ASSERT_TRUE(PlayGroup(*buffer_, 0, 2, 1).ok());
  ASSERT_TRUE(buffer_->Dispatch(TestId(1, 0)).ok());
  ASSERT_TRUE(AppendAndWait(*buffer_, SimpleTrajectory(TestId(1, 0), 1)).ok());
  Crash();
  const auto [number, path] = Segments().at(0);
  Damage(path, [n = number](std::string& bytes) {  // the last record lost its end
    const auto record = FindRecord(bytes, n, RecordType::kTrajectory, TestId(1, 0).trajectory_id);
    const size_t at = record->offset + kRecordAlign + 100;
    bytes.replace(at, record->header.payload_bytes - 100, record->header.payload_bytes - 100, 0);
  });
  Open();
  EXPECT_GT(recovery_.torn_tail_bytes, 0);
  EXPECT_EQ(recovery_.quarantined_records, 0);
  EXPECT_THAT(recovery_.notes, ElementsAre(HasSubstr("were being written")));
  EXPECT_EQ(buffer_->ledger().pending, 2);
  EXPECT_EQ(buffer_->ledger().dispatched, 3);
  EXPECT_EQ(recovery_.missing.size(), 2U);
  EXPECT_EQ(QuarantinedFiles(), 1U);  // nothing is deleted silently
  Crash();
  Open();
  EXPECT_EQ(recovery_.torn_tail_bytes, 0);  // once
}

TEST_F(RecoveryTest, ADamagedPayloadIsQuarantinedAndTheRestKept) {
  Open();
  for (int64_t group = 0; group < 3; ++group) ASSERT_TRUE(PlayGroup(*buffer_, group, 2, 1).ok());
  Close();
  DamageTrajectory(TestId(1, 0), 64 + 90);
  Open();
  EXPECT_EQ(recovery_.quarantined_records, 1);
  EXPECT_GT(recovery_.quarantined_bytes, 0);
  EXPECT_EQ(recovery_.torn_tail_bytes, 0);
  EXPECT_EQ(Rejected(RejectReason::kQuarantined), 1);
  EXPECT_EQ(buffer_->ledger().pending, 5);
  EXPECT_THAT(
      recovery_.missing,
      ElementsAre(MissingMember{.group_id = 1, .member = 0, .next_attempt = 1, .task_id = 1001}));
  EXPECT_EQ(QuarantinedFiles(), 1U);
  Open();  // reported once
  EXPECT_EQ(recovery_.quarantined_records, 0);
  EXPECT_EQ(Rejected(RejectReason::kQuarantined), 1);
}

TEST_F(RecoveryTest, ADamagedHeaderIsResynchronisedPast) {
  Open();
  for (int64_t group = 0; group < 3; ++group) ASSERT_TRUE(PlayGroup(*buffer_, group, 2, 1).ok());
  Close();
  DamageTrajectory(TestId(1, 0), 20);
  Open();
  EXPECT_EQ(recovery_.quarantined_records, 1);
  EXPECT_EQ(Rejected(RejectReason::kQuarantined), 1);  // its payload still said whose it was
  EXPECT_EQ(buffer_->ledger().pending, 5);
}

TEST_F(RecoveryTest, TheLastRecordCompleteButDamagedIsQuarantinedNotTorn) {
  Open();
  ASSERT_TRUE(PlayGroup(*buffer_, 0, 2, 1).ok());
  Close();
  DamageTrajectory(TestId(0, 1), 64 + 100);
  Open();
  EXPECT_EQ(recovery_.quarantined_records, 1);
  EXPECT_EQ(recovery_.torn_tail_bytes, 0);
  EXPECT_EQ(Rejected(RejectReason::kQuarantined), 1);
}

TEST_F(RecoveryTest, AReplayThatLostAMemberIsDroppedAndItsMembersArePendingAgain) {
  Open();
  for (int64_t group = 0; group < 3; ++group) ASSERT_TRUE(PlayGroup(*buffer_, group, 2, 1).ok());
  for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(buffer_->Lease(1, 1, In(10)).ok());
  Close();
  DamageTrajectory(TestId(1, 0), 64 + 90);
  Open();
  EXPECT_EQ(recovery_.replay_batches, 1);  // 2 is damaged, and 3 would follow other weights
  EXPECT_THAT(recovery_.notes, testing::Contains(HasSubstr("batches from 2 on are not replayed")));
  EXPECT_EQ(buffer_->ledger().pending, 5);
  EXPECT_TRUE(buffer_->Lease(1, 1, In(10))->replay);
  const Result<Batch> fresh = buffer_->Lease(1, 1, In(10));
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(fresh->sequence, 2);
  EXPECT_FALSE(fresh->replay);
  EXPECT_EQ(fresh->trajectories[0]->id.group_id, 2);
}

TEST_F(RecoveryTest, ALostLeaseOfACommittedBatchDoesNotTrainTwice) {
  for (const int copies :
       {1, 2}) {  // of the lease that are damaged; its commit helps when both are
    TestFolder folder;
    options_.folder = folder.path() + "/log";
    Open();
    for (int64_t group = 0; group < 2; ++group) ASSERT_TRUE(PlayGroup(*buffer_, group, 2, 1).ok());
    ASSERT_TRUE(buffer_->Lease(1, 1, In(10)).ok());
    ASSERT_TRUE(buffer_->Commit(1).ok());
    Crash();
    const auto [number, path] = Segments().at(0);
    Damage(path, [&, n = number](std::string& bytes) {
      for (int i = 0; i < copies; ++i)
        bytes[FindRecord(bytes, n, RecordType::kLease)->offset + 70] ^= 1;
    });
    Open(1);
    EXPECT_EQ(buffer_->ledger().trained, 2);
    EXPECT_EQ(buffer_->ledger().pending, 2);
    EXPECT_EQ(recovery_.quarantined_records, copies);
    Close();
  }
}

TEST_F(RecoveryTest, ALostDispatchOrStateIsMadeGoodByTheRest) {
  Open();
  ASSERT_TRUE(PlayGroup(*buffer_, 0, 2, 1).ok());
  Crash();
  for (const char* state : kStateNames) {
    const std::string path = options_.folder + "/" + state;
    if (!fs::exists(path)) continue;
    Damage(path, [](std::string& bytes) { bytes[20] ^= 1; });
  }
  const auto [number, path] = Segments().at(0);
  Damage(path, [n = number](std::string& bytes) {
    bytes[FindRecord(bytes, n, RecordType::kDispatch, TestId(0, 0).trajectory_id)->offset + 40] ^=
        1;
  });
  Open();
  EXPECT_THAT(recovery_.notes, testing::Contains(HasSubstr("the state files are damaged")));
  EXPECT_EQ(recovery_.quarantined_records, 1);
  EXPECT_EQ(buffer_->ledger().dispatched, 2);
  EXPECT_EQ(buffer_->ledger().pending, 2);
}

TEST_F(RecoveryTest, TheOlderStateIsEnough) {
  Open();
  for (int64_t group = 0; group < 3; ++group) ASSERT_TRUE(PlayGroup(*buffer_, group, 2, 1).ok());
  Close();
  Open();
  ASSERT_TRUE(buffer_->Lease(1, 1, In(10)).ok());
  ASSERT_TRUE(buffer_->Commit(1).ok());
  Close();
  for (const char* state : kStateNames) {
    Damage(options_.folder + "/" + state, [](std::string& bytes) { bytes[70] ^= 1; });
    Open(1);
    EXPECT_EQ(buffer_->ledger().trained, 2);
    EXPECT_EQ(buffer_->ledger().pending, 4);
    Close();
  }
}

TEST_F(RecoveryTest, AMissingSegmentIsNoticed) {
  options_.segment_bytes = 1 << 16;
  Open();
  for (int64_t group = 0; group < 20; ++group) {
    for (int32_t member = 0; member < 2; ++member) {
      ASSERT_TRUE(buffer_->Dispatch(TestId(group, member)).ok());
      ASSERT_TRUE(
          AppendAndWait(*buffer_, SimpleTrajectory(TestId(group, member), 1, 2000, 4)).ok());
    }
  }
  Close();
  ASSERT_GT(Segments().size(), 3U);
  fs::remove(Segments().at(1).second);
  Open();
  EXPECT_GT(Rejected(RejectReason::kQuarantined), 0);
  EXPECT_EQ(buffer_->ledger().dispatched, 40);
  EXPECT_EQ(static_cast<int64_t>(recovery_.missing.size()), Rejected(RejectReason::kQuarantined));
  EXPECT_THAT(recovery_.notes, testing::Contains(HasSubstr("must be sampled again")));
}

TEST_F(RecoveryTest, OneProcessHoldsTheFolder) {
  Open();
  Recovery recovery;
  const auto other = Buffer::Open(options_, 0, {}, &recovery);
  EXPECT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), HasSubstr("another process holds"));
}

TEST_F(RecoveryTest, AnotherGroupSizeIsRefusedWithTheRightOne) {
  Open();
  Close();
  options_.group_size = 3;
  Recovery recovery;
  const auto other = Buffer::Open(options_, 0, {}, &recovery);
  EXPECT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), HasSubstr("written with group_size 2, now 3"));
}

TEST_F(RecoveryTest, NothingReadableIsDataLoss) {
  Open();
  ASSERT_TRUE(PlayGroup(*buffer_, 0, 2, 1).ok());
  Close();
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    if (entry.path().filename() == "lock") continue;
    Damage(entry.path().string(), [](std::string& bytes) { bytes.assign(100000, 'x'); });
  }
  Recovery recovery;
  const auto other = Buffer::Open(options_, 0, {}, &recovery);
  EXPECT_EQ(other.status().code(), StatusCode::kDataLoss);
}

TEST_F(RecoveryTest, ALogThatWasEmptiedUnderACheckpointSaysSo) {
  Open(7);
  EXPECT_THAT(recovery_.notes, ElementsAre(HasSubstr("the checkpoint holds batches up to 7")));
  ASSERT_TRUE(PlayGroup(*buffer_, 0, 2, 1).ok());
  EXPECT_EQ(buffer_->Lease(1, 1, In(10))->sequence, 8);
}

TEST_F(RecoveryTest, DiskBackpressureEndsAtTheDeadlineAndClearsWithACommit) {
  options_.segment_bytes = 1 << 16;
  options_.disk_bytes_max = 1 << 19;
  Open();
  int64_t group = 0;
  Status full;
  while (full.ok()) {
    for (int32_t member = 0; member < 2 && full.ok(); ++member) {
      ASSERT_TRUE(buffer_->Dispatch(TestId(group, member)).ok());
      full = AppendAndWait(*buffer_, SimpleTrajectory(TestId(group, member), 1, 2000, 4), 0.05);
    }
    ++group;
    ASSERT_LT(group, 100);
  }
  EXPECT_EQ(full.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(full.message(), HasSubstr("of 524288 bytes of disk"));
  EXPECT_LE(buffer_->stats().disk_bytes, options_.disk_bytes_max);
  ASSERT_GT(group, 10);
  Result<Batch> batch = buffer_->Lease(group - 1, 1, In(10));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  ASSERT_TRUE(buffer_->Commit(batch->sequence).ok());
  ASSERT_TRUE(PlayGroup(*buffer_, group, 2, 1).ok());
  EXPECT_LE(buffer_->stats().disk_bytes, options_.disk_bytes_max);
  EXPECT_TRUE(buffer_->ledger().balanced());
}

}  // namespace
}  // namespace forebay::buffer
