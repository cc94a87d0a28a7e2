// What a reader without the lock sees: everything, in order, and nothing is changed by it.
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/log/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/log_reader_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

using testing::HasSubstr;

std::vector<int64_t> Ids(const Batch& batch) {
  std::vector<int64_t> ids;
  for (const TrajectoryPtr& t : batch.trajectories) ids.push_back(t->id.trajectory_id);
  return ids;
}

TEST(LogReader, GivesEveryRecordInOrder) {
  const TestFolder folder;
  LiveALife(folder.path());
  const auto reader = OpenReader(folder.path());
  const std::vector<LogRecord> records = Records(*reader);
  std::array<int64_t, kLogEvents> counts{};
  int64_t last = 0;
  for (const LogRecord& record : records) {
    EXPECT_GT(record.sequence, last);
    last = record.sequence;
    ++counts[static_cast<size_t>(record.event)];
  }
  EXPECT_EQ(counts[static_cast<size_t>(LogEvent::kDispatch)], 22);
  EXPECT_EQ(counts[static_cast<size_t>(LogEvent::kTrajectory)], 20);
  EXPECT_EQ(counts[static_cast<size_t>(LogEvent::kReject)], 1);
  EXPECT_EQ(counts[static_cast<size_t>(LogEvent::kLease)], 6);  // each twice, to outlive damage
  EXPECT_EQ(counts[static_cast<size_t>(LogEvent::kCommit)], 2);
  // The same from the index alone.
  const std::vector<LogRecord> indexed = Records(*reader, {.payloads = false});
  ASSERT_EQ(indexed.size(), records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(indexed[i].sequence, records[i].sequence);
    EXPECT_EQ(indexed[i].event, records[i].event);
    EXPECT_EQ(indexed[i].id, records[i].id);
    EXPECT_EQ(indexed[i].trajectory_ids, records[i].trajectory_ids);
    EXPECT_EQ(indexed[i].offset, records[i].offset);
  }
  // The segments tell the same numbers.
  std::array<int64_t, kLogEvents> listed{};
  for (const SegmentInfo& info : reader->segments()) {
    EXPECT_NE(info.state, SegmentInfo::State::kDamaged) << info.problem;
    for (size_t i = 0; i < listed.size(); ++i) listed[i] += info.records[i];
  }
  EXPECT_EQ(listed, counts);
}

TEST(LogReader, FiltersAndEndsWhenAsked) {
  const TestFolder folder;
  LiveALife(folder.path());
  const auto reader = OpenReader(folder.path());
  LogFilter leases;
  leases.events = {};
  leases.events[static_cast<size_t>(LogEvent::kLease)] = true;
  std::vector<LogRecord> found = Records(*reader, leases);
  ASSERT_EQ(found.size(), 6U);  // each twice
  EXPECT_EQ(found[2].batch, 2);
  EXPECT_EQ(found[2].learner_version, 12);
  EXPECT_EQ(found[2].trajectory_ids.size(), 4U);
  leases.from_sequence = found[4].sequence;
  EXPECT_EQ(Records(*reader, leases).size(), 2U);
  int64_t visits = 0;
  ASSERT_TRUE(reader->ForEach({}, [&](const LogRecord&) { return ++visits < 3; }).ok());
  EXPECT_EQ(visits, 3);
  EXPECT_EQ(reader->NthNewest(2, {.events = leases.events}).value(), found[4].sequence);
  EXPECT_EQ(reader->NthNewest(99, {.events = leases.events}).value(), found[0].sequence);
  EXPECT_EQ(reader->NthNewest(0, {}).value(), 0);
}

TEST(LogReader, TellsTheStateAndTheFates) {
  const TestFolder folder;
  LiveALife(folder.path());
  const auto reader = OpenReader(folder.path());
  const Result<LogState> state = reader->ReadState();
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_TRUE(state->ledger.balanced());
  EXPECT_EQ(state->ledger.dispatched, 22);
  EXPECT_EQ(state->ledger.trained, 8);
  EXPECT_EQ(state->ledger.pending, 12);
  EXPECT_EQ(state->ledger.rejected[static_cast<size_t>(RejectReason::kOutcome)], 1);
  EXPECT_EQ(state->ready_groups, 4);
  EXPECT_EQ(state->committed_batch, 2);
  EXPECT_EQ(state->next_batch, 4);
  ASSERT_EQ(state->batches.size(), 3U);
  EXPECT_TRUE(state->batches[1].committed);
  EXPECT_FALSE(state->batches[2].committed);

  ASSERT_TRUE(reader->LoadFates().ok());
  const auto fate = [&](int64_t group) { return reader->FateOf(TestId(group, 0).trajectory_id); };
  EXPECT_EQ(fate(0), (Fate{.kind = Fate::Kind::kTrained, .batch = 1}));
  EXPECT_EQ(fate(3), (Fate{.kind = Fate::Kind::kTrained, .batch = 2}));
  EXPECT_EQ(fate(5), (Fate{.kind = Fate::Kind::kLeased, .batch = 3}));
  EXPECT_EQ(fate(9), (Fate{.kind = Fate::Kind::kPending}));
  EXPECT_EQ(fate(10), Fate{});  // no record of a trajectory
  EXPECT_EQ(reader->FateOf(-5), Fate{});
}

TEST(LogReader, TellsTheSameFatesWithoutAState) {
  const TestFolder folder;
  LiveALife(folder.path());
  for (const char* name : kStateNames) std::filesystem::remove(folder.path() + "/" + name);
  const auto reader = OpenReader(folder.path());
  ASSERT_TRUE(reader->ReadState().ok());  // all records are there
  EXPECT_EQ(reader->ReadState()->ledger.trained, 8);
  ASSERT_TRUE(reader->LoadFates().ok());
  EXPECT_EQ(reader->FateOf(TestId(2, 1).trajectory_id).kind, Fate::Kind::kTrained);
  EXPECT_EQ(reader->FateOf(TestId(4, 1).trajectory_id).kind, Fate::Kind::kLeased);
  EXPECT_EQ(reader->FateOf(TestId(8, 1).trajectory_id).kind, Fate::Kind::kPending);
}

TEST(LogReader, ReadsBatches) {
  const TestFolder folder;
  LiveALife(folder.path());
  const auto reader = OpenReader(folder.path());
  const Result<Batch> batch = reader->ReadBatch(2);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->learner_version, 12);
  EXPECT_THAT(Ids(*batch),
              testing::ElementsAre(TestId(2, 0).trajectory_id, TestId(2, 1).trajectory_id,
                                   TestId(3, 0).trajectory_id, TestId(3, 1).trajectory_id));
  EXPECT_EQ(*batch->trajectories[0], SimpleTrajectory(TestId(2, 0), 2));
  EXPECT_TRUE(reader->ReadBatch(3).ok());  // leased, not trained yet
  const Status none = reader->ReadBatch(4).status();
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("the last one is 3"));
  EXPECT_EQ(reader->ReadBatch(0).status().code(), StatusCode::kNotFound);
}

TEST(LogReader, ADamagedBatchIsDataLoss) {
  const TestFolder folder;
  LiveALife(folder.path());
  const auto reader = OpenReader(folder.path());
  for (const LogRecord& record : Records(*reader)) {
    if (record.event == LogEvent::kTrajectory && record.id == TestId(1, 1)) {
      FlipByte(PathOf(*reader, record.segment), record.offset + 100);
    }
  }
  ASSERT_TRUE(reader->Refresh().ok());
  const Status gone = reader->ReadBatch(1).status();
  EXPECT_EQ(gone.code(), StatusCode::kDataLoss);
  EXPECT_THAT(gone.message(), HasSubstr("trajectory 137"));
  EXPECT_TRUE(reader->ReadBatch(2).ok());
}

TEST(LogReader, ALiveBufferIsReadWithoutItsLock) {
  const TestFolder folder;
  const auto buffer = OpenToolBuffer(ToolOptions(folder.path()));
  ASSERT_TRUE(PlayGroup(*buffer, 0, kToolGroupSize, 1).ok());
  const auto reader = OpenReader(folder.path());
  EXPECT_TRUE(Verified(*reader).empty());
  std::vector<int64_t> seen;
  int64_t moved = 0;  // copies, to free segments
  const auto visit = [&](const LogRecord& record) {
    seen.push_back(record.sequence);
    moved += record.moved ? 1 : 0;
    return true;
  };
  ASSERT_TRUE(reader->Follow(0, {}, visit).ok());
  EXPECT_EQ(seen.size(), 4U);
  // Over many segments, nothing twice and nothing left out.
  for (int64_t group = 1; group < 400; ++group) {
    ASSERT_TRUE(PlayGroup(*buffer, group, kToolGroupSize, 1).ok());
    if (group % 7 != 0) continue;
    ASSERT_TRUE(reader->Follow(seen.back(), {}, visit).ok());
  }
  ASSERT_TRUE(reader->Follow(seen.back(), {}, visit).ok());
  EXPECT_EQ(static_cast<int64_t>(seen.size()) - moved, 1600);
  EXPECT_EQ(std::ranges::adjacent_find(seen, std::greater_equal<>()), seen.end());
  EXPECT_TRUE(Verified(*reader).empty());
  const Result<LogState> state = reader->ReadState();
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->ledger.pending, 800);
  EXPECT_GT(reader->segments().size(), 2U);
}

TEST(LogReader, RecycledSegmentsLeaveTheRest) {
  const TestFolder folder;
  BufferOptions options = ToolOptions(folder.path());
  options.retain_committed = false;
  options.disk_bytes_max = 512 << 10;
  {
    const auto buffer = OpenToolBuffer(options);
    for (int64_t group = 0; group < 2000; ++group) {
      ASSERT_TRUE(PlayGroup(*buffer, group, kToolGroupSize, group / 10).ok());
      if (group % 2 == 0) continue;
      const Result<Batch> batch = buffer->Lease(2, group / 10, In(30));
      ASSERT_TRUE(batch.ok()) << batch.status().ToString();
      if (batch->sequence % 4 != 0) continue;
      ASSERT_TRUE(buffer->Commit(batch->sequence).ok());
    }
  }
  const auto reader = OpenReader(folder.path());
  EXPECT_TRUE(Verified(*reader).empty());
  EXPECT_LT(Records(*reader).size(), 8000U);
  const Result<LogState> state = reader->ReadState();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->ledger.trained, 4000);
  EXPECT_EQ(state->committed_batch, 1000);
  EXPECT_EQ(reader->ReadBatch(1).status().code(), StatusCode::kNotFound);
}

TEST(LogReader, ChangesNothing) {
  const TestFolder folder;
  LiveALife(folder.path());
  const auto before = Snapshot(folder.path());
  const auto reader = OpenReader(folder.path());
  Records(*reader);
  Verified(*reader);
  ASSERT_TRUE(reader->ReadState().ok());
  ASSERT_TRUE(reader->ReadBatch(1).ok());
  EXPECT_EQ(Snapshot(folder.path()), before);
}

TEST(LogReader, FindsTheBufferOfARun) {
  const TestFolder run;
  std::filesystem::create_directories(run.path() + "/buffer");
  LiveALife(run.path() + "/buffer");
  EXPECT_EQ(OpenReader(run.path() + "/")->folder(), run.path() + "/buffer");
  // Several: it asks which.
  std::filesystem::rename(run.path() + "/buffer", run.path() + "/train");
  std::filesystem::create_directories(run.path() + "/eval");
  LiveALife(run.path() + "/eval");
  const Status which = LogReader::Open(run.path()).status();
  EXPECT_EQ(which.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(which.message(), HasSubstr("eval,train"));
  const TestFolder empty;
  EXPECT_EQ(LogReader::Open(empty.path()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LogReader::Open(empty.path() + "/none").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace forebay::buffer
