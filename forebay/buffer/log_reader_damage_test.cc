// What the tools say about damage, and what is left after repair. Whatever lies in the folder, they
// end with a clear answer.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/log_reader_testing.h"
#include "forebay/buffer/log_repair.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class Damage : public testing::Test {
 protected:
  Damage() {
    LiveALife(folder_.path());
    reader_ = OpenReader(folder_.path());
  }
  LogRecord TrajectoryRecord(const TrajectoryId& id) {
    for (const LogRecord& record : Records(*reader_)) {
      if (record.event == LogEvent::kTrajectory && record.id == id) return record;
    }
    ADD_FAILURE() << "no such trajectory";
    return {};
  }
  std::string PathOf(const LogRecord& record) { return buffer::PathOf(*reader_, record.segment); }
  RepairReport Repair(bool dry_run = false) {
    Result<RepairReport> report = RepairLog(folder_.path(), dry_run);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? std::move(*report) : RepairReport();
  }
  // After a repair: nothing to say, nothing to do, and a start that finds the rest.
  void ExpectClean() {
    EXPECT_THAT(Verified(*reader_), IsEmpty());
    const RepairReport again = Repair();
    EXPECT_THAT(again.actions, IsEmpty());
    EXPECT_THAT(again.unrepaired, IsEmpty());
  }

  TestFolder folder_;
  std::unique_ptr<LogReader> reader_;
};

TEST_F(Damage, AWholeLogIsWhole) {
  VerifyTotals totals;
  EXPECT_THAT(Verified(*reader_, &totals), IsEmpty());
  EXPECT_EQ(totals.trajectories, 20);
  EXPECT_GT(totals.records, 48);
  const auto before = Snapshot(folder_.path());
  ExpectClean();
  EXPECT_EQ(Snapshot(folder_.path()), before);
}

TEST_F(Damage, AFlippedPayloadIsNamedAndRepaired) {
  const LogRecord record = TrajectoryRecord(TestId(9, 1));
  FlipByte(PathOf(record), record.offset + static_cast<int64_t>(kRecordAlign) + 40);
  const std::vector<LogDamage> found = Verified(*reader_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].segment, record.segment);
  EXPECT_EQ(found[0].offset, record.offset);
  EXPECT_EQ(found[0].bytes, record.bytes);
  EXPECT_THAT(found[0].lost, testing::ElementsAre(TestId(9, 1)));

  // A dry run says the same and changes nothing.
  const auto before = Snapshot(folder_.path());
  const RepairReport dry = Repair(true);
  EXPECT_EQ(Snapshot(folder_.path()), before);
  const RepairReport report = Repair();
  ASSERT_EQ(report.actions.size(), 1U);
  ASSERT_EQ(dry.actions.size(), 1U);
  EXPECT_EQ(dry.actions[0].what, report.actions[0].what);
  EXPECT_EQ(report.actions[0].lost, found[0].lost);
  // Its bytes are kept.
  std::ifstream kept(folder_.path() + "/" + report.actions[0].kept_as, std::ios::binary);
  EXPECT_TRUE(kept.good());
  EXPECT_EQ(std::filesystem::file_size(folder_.path() + "/" + report.actions[0].kept_as),
            static_cast<size_t>(record.bytes));

  // What is pending and lost is noticed until a start has counted it.
  std::vector<LogDamage> left = Verified(*reader_);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].file, "state");
  Recovery recovery;
  {
    const auto buffer = OpenToolBuffer(ToolOptions(folder_.path()), 2, &recovery);
    EXPECT_EQ(buffer->ledger().rejected[static_cast<size_t>(RejectReason::kQuarantined)], 1);
    EXPECT_EQ(buffer->ledger().pending, 11);
    EXPECT_TRUE(buffer->ledger().balanced());
  }
  EXPECT_EQ(recovery.quarantined_records, 0);
  ExpectClean();
  Recovery next;
  OpenToolBuffer(ToolOptions(folder_.path()), 2, &next);
  EXPECT_THAT(next.notes, IsEmpty());
}

TEST_F(Damage, AFlippedHeaderOfATrainedRecordCostsThatRecord) {
  const LogRecord record = TrajectoryRecord(TestId(0, 0));
  FlipByte(PathOf(record), record.offset + 20);
  const std::vector<LogDamage> found = Verified(*reader_);
  ASSERT_GE(found.size(), 1U);
  EXPECT_EQ(found[0].offset, record.offset);
  EXPECT_FALSE(Repair().actions.empty());
  OpenToolBuffer(ToolOptions(folder_.path()), 2);
  EXPECT_THAT(Verified(*reader_), IsEmpty());
  EXPECT_EQ(reader_->ReadBatch(1).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(reader_->ReadBatch(2).ok());
}

TEST_F(Damage, ADamagedIndexLosesNothing) {
  const std::string path = buffer::PathOf(*reader_, 1);
  const size_t records = Records(*reader_).size();
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  for (const int64_t from_end : {10, 30, 3000, 4090}) {
    FlipByte(path, size - from_end);
    const std::vector<LogDamage> found = Verified(*reader_);
    ASSERT_EQ(found.size(), 1U) << from_end;
    EXPECT_THAT(found[0].what, HasSubstr("index"));
    EXPECT_EQ(found[0].records, 0);
    EXPECT_EQ(Records(*reader_).size(), records);
    EXPECT_EQ(Repair().actions.size(), 1U);
    ExpectClean();
  }
  EXPECT_EQ(Records(*reader_).size(), records);
}

TEST_F(Damage, ADamagedSegmentHeaderLosesNothing) {
  const size_t records = Records(*reader_).size();
  FlipByte(buffer::PathOf(*reader_, 1), 9);
  EXPECT_EQ(Verified(*reader_).size(), 1U);
  EXPECT_EQ(Records(*reader_).size(), records);
  EXPECT_EQ(Repair().actions.size(), 1U);
  ExpectClean();
  EXPECT_EQ(Records(*reader_).size(), records);
}

TEST_F(Damage, ACutSegmentKeepsWhatIsLeft) {
  const LogRecord record = TrajectoryRecord(TestId(5, 1));
  std::filesystem::resize_file(PathOf(record), static_cast<size_t>(record.offset + 70));
  ASSERT_TRUE(reader_->Refresh().ok());
  EXPECT_EQ(reader_->segments()[0].state, SegmentInfo::State::kDamaged);
  EXPECT_THAT(reader_->segments()[0].problem, HasSubstr("cut"));
  EXPECT_FALSE(Verified(*reader_).empty());
  EXPECT_FALSE(Repair().actions.empty());
  ASSERT_TRUE(reader_->Refresh().ok());
  EXPECT_NE(reader_->segments()[0].state, SegmentInfo::State::kDamaged)
      << reader_->segments()[0].problem;
  Recovery recovery;
  const auto buffer = OpenToolBuffer(ToolOptions(folder_.path()), 2, &recovery);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_F(Damage, OneStateFileIsEnough) {
  const auto before = reader_->ReadState();
  ASSERT_TRUE(before.ok());
  FlipByte(folder_.path() + "/state-a", 80);
  EXPECT_THAT(Verified(*reader_), IsEmpty());  // harmless: the other one is whole, or the log is
  EXPECT_EQ(reader_->ReadState()->ledger.pending, before->ledger.pending);
  EXPECT_LE(Repair().actions.size(), 1U);
  ExpectClean();
}

TEST_F(Damage, WithoutAStateAndItsFirstRecordsItSaysWhatIsLeft) {
  for (const char* name : kStateNames) {
    if (std::filesystem::exists(folder_.path() + "/" + name)) {
      FlipByte(folder_.path() + "/" + name, 80);
    }
  }
  // As after recycling.
  const std::string path = buffer::PathOf(*reader_, 1);
  std::ifstream in(path, std::ios::binary);
  std::string block(kBlockBytes, '\0');
  in.read(block.data(), static_cast<std::streamsize>(block.size()));
  std::filesystem::remove(path);
  EXPECT_EQ(LogReader::Open(folder_.path()).ok(), true);
  ASSERT_TRUE(reader_->Refresh().ok());
  const Status state = reader_->ReadState().status();
  EXPECT_EQ(state.code(), StatusCode::kDataLoss);
  EXPECT_THAT(state.message(), HasSubstr("export"));
  EXPECT_TRUE(reader_->LoadFates().ok());
  EXPECT_EQ(Repair().unrepaired.size(), 1U);
}

TEST_F(Damage, ACopyOfASegmentIsFoundAndSetAside) {
  const size_t records = Records(*reader_).size();
  std::filesystem::copy(buffer::PathOf(*reader_, 1), folder_.path() + "/segment-0000000099.log");
  ASSERT_TRUE(reader_->Refresh().ok());
  EXPECT_EQ(Records(*reader_).size(), records);  // nothing twice
  EXPECT_EQ(Verified(*reader_).size(), 1U);
  EXPECT_EQ(Repair().actions.size(), 1U);
  EXPECT_TRUE(std::filesystem::exists(folder_.path() + "/quarantine/segment-0000000099.log"));
  ExpectClean();
}

TEST_F(Damage, StrangeFilesAreNamedAndSetAside) {
  const size_t records = Records(*reader_).size();
  std::ofstream(folder_.path() + "/segment-0000000050.log") << std::string(10000, 'x');
  const std::ofstream empty(folder_.path() + "/segment-0000000051.log");
  std::filesystem::create_directory(folder_.path() + "/segment-0000000052.log");
  ASSERT_EQ(::mkfifo((folder_.path() + "/segment-0000000053.log").c_str(), 0600), 0);
  std::filesystem::create_symlink("/nonexistent", folder_.path() + "/segment-0000000054.log");
  const std::ofstream unread(folder_.path() + "/segment-0000000055.log");
  // A sparse file that claims to be huge.
  std::filesystem::resize_file(folder_.path() + "/segment-0000000055.log", size_t{1} << 40);
  WriteAt(folder_.path() + "/segment-0000000055.log", 0,
          EncodeSegmentHeader({.number = 77, .capacity = int64_t{1} << 40, .group_size = 2}));
  std::ofstream(folder_.path() + "/notes.txt") << "mine";
  ASSERT_TRUE(reader_->Refresh().ok());
  EXPECT_EQ(Records(*reader_).size(), records);
  EXPECT_FALSE(reader_->TakeNotes().empty());
  EXPECT_GE(Verified(*reader_).size(), 5U);
  const RepairReport report = Repair();
  EXPECT_GE(report.actions.size(), 4U);
  EXPECT_EQ(report.unrepaired.size(), 1U);  // the huge one
  EXPECT_TRUE(std::filesystem::exists(folder_.path() + "/notes.txt"));
}

TEST_F(Damage, AnotherFormatIsRefusedByRepair) {
  std::string block = EncodeSegmentHeader({.format = 9, .number = 1, .capacity = 65536});
  WriteAt(buffer::PathOf(*reader_, 1), 0, block);
  ASSERT_TRUE(reader_->Refresh().ok());
  EXPECT_THAT(reader_->segments().back().problem, HasSubstr("format 9"));
  EXPECT_EQ(RepairLog(folder_.path(), false).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(Damage, RepairNeedsTheLock) {
  const auto buffer = OpenToolBuffer(ToolOptions(folder_.path()), 2);
  const Status held = RepairLog(folder_.path(), false).status();
  EXPECT_EQ(held.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(held.message(), HasSubstr("another process holds"));
}

// Whatever is flipped, cut or overwritten: no crash, nothing invented, and a repaired folder opens.
TEST(DamageAtRandom, IsSurvived) {
  Rng rng(5);
  const TestFolder whole;
  LiveALife(whole.path());
  const size_t records = Records(*OpenReader(whole.path())).size();
  for (int round = 0; round < 60; ++round) {
    const TestFolder folder;
    std::filesystem::copy(whole.path(), folder.path(),
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    const auto reader = OpenReader(folder.path());
    std::vector<std::string> paths;
    for (const char* name : kStateNames) {
      const std::string path = folder.path() + "/" + name;
      if (std::filesystem::exists(path)) paths.push_back(path);
    }
    for (const SegmentInfo& info : reader->segments()) {
      paths.push_back(folder.path() + "/" + info.file);
    }
    const auto wounds = static_cast<int>(1 + rng.Below(4));
    for (int i = 0; i < wounds; ++i) {
      const std::string& path = paths[rng.Below(paths.size())];
      if (!std::filesystem::exists(path)) continue;
      const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
      if (size == 0) continue;
      const auto at = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(size)));
      switch (rng.Below(4)) {
        case 0:
          std::filesystem::resize_file(path, static_cast<size_t>(at));
          break;
        case 1:
          WriteAt(path, at,
                  std::string(std::min<size_t>(5000, static_cast<size_t>(size - at)), 'z'));
          break;
        default:
          FlipByte(path, at);
      }
    }
    ASSERT_TRUE(reader->Refresh().ok());
    reader->segments();
    EXPECT_LE(Records(*reader).size(), records);
    Verified(*reader);
    reader->LoadFates().ok();
    reader->ReadState().ok();
    reader->ReadBatch(1).ok();
    const Result<RepairReport> report = RepairLog(folder.path(), false);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    Recovery recovery;
    const Result<std::unique_ptr<Buffer>> buffer =
        Buffer::Open(ToolOptions(folder.path()), 2, {}, &recovery);
    if (!buffer.ok()) {
      EXPECT_EQ(buffer.status().code(), StatusCode::kDataLoss) << buffer.status().ToString();
      continue;
    }
    EXPECT_TRUE((*buffer)->ledger().balanced());
    EXPECT_EQ(recovery.quarantined_records, 0) << round;
  }
}

}  // namespace
}  // namespace forebay::buffer
