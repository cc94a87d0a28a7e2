// The forms of the log: records, segments with and without an index, state files, and
// what a scan finds in any bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/file_testing.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

constexpr size_t kCapacity = size_t{1} << 16;

TEST(FileSystem, WhatIsNoFileIsNotWaitedFor) {
  const TestFolder folder;
  const auto files = MakeFileSystem();
  const std::string pipe = folder.path() + "/state-a";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, folder.path()}) {
    EXPECT_EQ(files->Read(path).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(files->Open(path).status().code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(files->Read(pipe + "x").status().code(), StatusCode::kNotFound);
}

TEST(Record, HeadersAreKnownByTheirSegmentAndEveryBit) {
  RecordHeader header{.type = RecordType::kTrajectory,
                      .payload_bytes = 9,
                      .sequence = 5,
                      .segment = 7,
                      .min_version = 3,
                      .priority = 2.5F};
  const TrajectoryId id{
      .trajectory_id = 5, .group_id = 4, .member = 65535, .attempt = 2, .task_id = -1};
  header.SetId(id);
  SealHeader(header);
  const std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  ASSERT_TRUE(ParseHeader(bytes, 7).has_value());
  EXPECT_EQ(ParseHeader(bytes, 7)->id(), id);
  EXPECT_EQ(ParseHeader(bytes, 7)->priority, 2.5F);
  EXPECT_FALSE(ParseHeader(bytes, 8).has_value());
  EXPECT_FALSE(ParseHeader(std::string_view(bytes).substr(1), 7).has_value());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string bad = bytes;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(ParseHeader(bad, 7).has_value()) << bit;
  }
}

TEST(Record, LeasesRoundTripAndRefuseEveryTruncation) {
  const LeaseRecord lease{.sequence = 3, .learner_version = 2, .trajectory_ids = {1, 2, 3}};
  const std::string whole = EncodeLease(lease);
  EXPECT_EQ(*ParseLease(whole), lease);
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(ParseLease(std::string_view(whole).substr(0, n)).status().code(),
              StatusCode::kDataLoss)
        << n;
  }
  EXPECT_FALSE(ParseLease(whole + "x").ok());
  std::string huge = whole;
  huge[16 + 3] = '\x7f';  // a count of two billion
  EXPECT_EQ(ParseLease(huge).status().code(), StatusCode::kDataLoss);
}

void AppendRecord(RecordHeader header, std::string_view payload, std::string& bytes) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.payload_crc = Crc32c(payload);
  SealHeader(header);
  const size_t end = bytes.size() + static_cast<size_t>(RecordBytes(payload.size()));
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += payload;
  bytes.resize(end, '\0');
}

// Records 1, 2, ... of random size in segment `number`, up to the end of the data.
std::string MakeSegment(Rng& rng, int count, uint32_t number = 7) {
  std::string bytes = EncodeSegmentHeader({.number = number,
                                           .capacity = static_cast<int64_t>(kCapacity),
                                           .first_sequence = 1,
                                           .group_size = 1});
  for (int i = 1; i <= count; ++i) {
    const TrajectoryId id{.trajectory_id = 100 + i, .group_id = i};
    RecordHeader header{.type = RecordType::kTrajectory, .sequence = i, .segment = number};
    header.SetId(id);
    AppendRecord(
        header, Encode(SimpleTrajectory(id, 1, 4, static_cast<int32_t>(1 + rng.Below(40)))), bytes);
  }
  return bytes;
}

// As it lies on the disk once it is complete.
std::string Sealed(std::string bytes, uint32_t number = 7) {
  std::vector<RecordHeader> headers;
  for (const ScannedRecord& r : ScanSegment(bytes, number).records) headers.push_back(r.header);
  bytes.resize(kCapacity, '\0');
  const std::string index = EncodeIndex(number, headers, static_cast<int64_t>(kCapacity));
  bytes.replace(bytes.size() - index.size(), index.size(), index);
  return bytes;
}

std::unique_ptr<LogFile> FileOf(SimDisk& disk, std::string_view bytes) {
  auto file = disk.Create("file", static_cast<int64_t>(bytes.size()), false);
  EXPECT_TRUE((*file)->Write(0, bytes).ok());
  return std::move(*file);
}

TEST(Segment, ScanFindsEveryRecordAndIgnoresUnusedSpace) {
  Rng rng(2);
  std::string bytes = MakeSegment(rng, 20);
  const size_t end = bytes.size();
  bytes.resize(kCapacity, '\0');
  const SegmentScan scan = ScanSegment(bytes, 7);
  ASSERT_EQ(scan.records.size(), 20U);
  EXPECT_EQ(scan.data_end, end);
  EXPECT_TRUE(scan.damaged.empty());
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(scan.records[i].header.sequence, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(Decode(scan.records[i].payload)->id.trajectory_id, 101 + static_cast<int64_t>(i));
  }
  EXPECT_TRUE(ScanSegment(bytes, 8).records.empty());
}

TEST(Segment, WhatAnEarlierLifeLeftIsNoRecordAndNoDamage) {
  Rng rng(6);
  std::string old = Sealed(MakeSegment(rng, 60, 3), 3);
  const std::string now = MakeSegment(rng, 20);
  ASSERT_LT(now.size(), old.size());
  old.replace(0, now.size(), now);
  const SegmentScan scan = ScanSegment(old, 7);
  EXPECT_EQ(scan.records.size(), 20U);
  EXPECT_EQ(scan.data_end, now.size());
  EXPECT_TRUE(scan.damaged.empty());
  SimDisk disk(1);
  EXPECT_FALSE(ReadIndex(*FileOf(disk, old), 7).has_value());  // the index is the old one
}

TEST(Segment, TheIndexSaysWhatAScanFinds) {
  Rng rng(7);
  const std::string bytes = Sealed(MakeSegment(rng, 20));
  SimDisk disk(1);
  const std::optional<SegmentScan> index = ReadIndex(*FileOf(disk, bytes), 7);
  const SegmentScan scan = ScanSegment(bytes, 7);
  ASSERT_TRUE(index.has_value());
  EXPECT_TRUE(index->sealed);
  EXPECT_TRUE(scan.damaged.empty());
  EXPECT_EQ(index->data_end, scan.data_end);
  ASSERT_EQ(index->records.size(), scan.records.size());
  for (size_t i = 0; i < scan.records.size(); ++i) {
    EXPECT_EQ(index->records[i].offset, scan.records[i].offset);
    EXPECT_EQ(index->records[i].header.sequence, scan.records[i].header.sequence);
  }
}

TEST(Segment, ADamagedIndexIsNoIndex) {
  Rng rng(8);
  const std::string good = Sealed(MakeSegment(rng, 20));
  const auto index_bytes = static_cast<size_t>(IndexBytes(20));
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    // The space between the headers and the trailer is not covered.
    const size_t span = i % 2 == 0 ? 20 * sizeof(RecordHeader) : sizeof(SegmentTrailer);
    const size_t begin = i % 2 == 0 ? kCapacity - index_bytes : kCapacity - sizeof(SegmentTrailer);
    const size_t at = begin + rng.Below(span);
    bad[at] = static_cast<char>(bad[at] ^ (1 << rng.Below(8)));
    SimDisk disk(1);
    EXPECT_FALSE(ReadIndex(*FileOf(disk, bad), 7).has_value()) << at;
    EXPECT_EQ(ScanSegment(bad, 7).records.size(), 20U) << at;
  }
}

TEST(Segment, AnUnfinishedRecordIsSteppedOver) {
  Rng rng(9);
  std::string bytes = MakeSegment(rng, 3);
  const std::vector<ScannedRecord> records = ScanSegment(bytes, 7).records;
  RecordHeader unfinished = records[1].header;
  unfinished.type = RecordType::kUnfinished;
  SealHeader(unfinished);
  std::memcpy(bytes.data() + records[1].offset, &unfinished, sizeof(unfinished));
  const SegmentScan scan = ScanSegment(bytes, 7);
  EXPECT_EQ(scan.records.size(), 2U);
  EXPECT_EQ(scan.unfinished, 1);
  EXPECT_TRUE(scan.damaged.empty());
  EXPECT_EQ(scan.data_end, bytes.size());
}

TEST(Segment, AnyFlippedBitCostsAtMostItsRecord) {
  Rng rng(3);
  const std::string good = MakeSegment(rng, 6);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    const size_t at = kDataBegin + rng.Below(bad.size() - kDataBegin);
    bad[at] = static_cast<char>(bad[at] ^ (1 << rng.Below(8)));
    const SegmentScan scan = ScanSegment(bad, 7);
    ASSERT_GE(scan.records.size(), 5U) << at;
    if (scan.records.size() == 6) continue;  // in the padding
    ASSERT_EQ(scan.damaged.size(), 1U);
    EXPECT_GT(scan.damaged[0].offset + scan.damaged[0].bytes, at);
    EXPECT_LE(scan.damaged[0].offset, at);
    ASSERT_FALSE(scan.damaged[0].lost.empty()) << at;  // whose record it was can still be told
  }
}

TEST(Segment, TruncationAnywhereKeepsWhatIsBefore) {
  Rng rng(4);
  const std::string good = MakeSegment(rng, 4);
  const std::vector<ScannedRecord> records = ScanSegment(good, 7).records;
  for (size_t n = 0; n < good.size(); ++n) {
    std::string cut = good.substr(0, n);
    if (n % 2 == 0) cut.resize(kCapacity, '\0');  // as a preallocated file is
    const SegmentScan scan = ScanSegment(cut, 7);
    size_t whole = 0;
    // The padding is no part of what the checksums cover.
    while (whole < 4 && records[whole].offset + kRecordAlign + records[whole].payload.size() <= n) {
      ++whole;
    }
    EXPECT_EQ(scan.records.size(), whole) << n;
    for (const DamagedRange& range : scan.damaged) EXPECT_TRUE(range.torn_tail) << n;
  }
}

TEST(Segment, NoiseHasNoRecordsAndNoHeader) {
  Rng rng(5);
  std::string noise(100000, ' ');
  for (char& c : noise) c = static_cast<char>(rng.Below(256));
  EXPECT_TRUE(ScanSegment(noise, 7).records.empty());
  EXPECT_EQ(ParseSegmentHeader(noise).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(ParseSegmentHeader("").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(ParseSegmentHeader(EncodeSegmentHeader({.format = 9})).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(Segment, AHeaderThatClaimsTooMuchIsRefusedBeforeAnythingElse) {
  std::string bytes(kDataBegin, '\0');
  AppendRecord({.type = RecordType::kLease, .sequence = 1, .segment = 7}, std::string(1000, 'x'),
               bytes);
  EXPECT_TRUE(ScanSegment(std::string_view(bytes).substr(0, kDataBegin + 512), 7).records.empty());
}

TEST(Segment, NamesRoundTrip) {
  EXPECT_EQ(ParseSegmentName(SegmentName(42)), 42U);
  for (const std::string_view bad :
       {"segment-.log", "segment-1x.log", "lock", "segment-99999999999.log"}) {
    EXPECT_FALSE(ParseSegmentName(bad).has_value()) << bad;
  }
}

TEST(StateFiles, TheNewestIsReadAndOlderOnesWhenItIsDamaged) {
  SimDisk disk(1);
  ASSERT_TRUE(disk.MakeFolder("f").ok());
  StateFiles writer(&disk, "f", true);
  EXPECT_EQ(writer.Read().status().code(), StatusCode::kNotFound);
  for (int64_t i = 1; i <= 5; ++i) {
    // The last is larger than a slot was made for.
    const std::string table(i == 5 ? 1000000 : 100, static_cast<char>('a' + i));
    ASSERT_TRUE(writer.Write({.sequence = 10 * i, .replay_from = 10 * i - 3, .table = table}).ok());
    const Result<State> state = StateFiles(&disk, "f", true).Read();
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(state->sequence, 10 * i);
    EXPECT_EQ(state->replay_from, 10 * i - 3);
    EXPECT_EQ(state->table, table);
  }
  // The fifth is in the second slot, the fourth in the first, the third in the last.
  for (const int64_t left : {40, 30, 0}) {
    auto file = disk.Open(std::string("f/") + kStateNames[left == 40 ? 1 : left == 30 ? 0 : 2]);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Write(70, "!").ok());
    const Result<State> state = StateFiles(&disk, "f", true).Read();
    if (left > 0) {
      ASSERT_TRUE(state.ok());
      EXPECT_EQ(state->sequence, left);
    } else {
      EXPECT_EQ(state.status().code(), StatusCode::kDataLoss);
    }
  }
}

TEST(StateFiles, EveryTruncationAndFlippedBitIsDataLoss) {
  const std::string good = EncodeState({.sequence = 5, .replay_from = 4, .table = "table"});
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(ParseState(std::string_view(good).substr(0, n)).status().code(),
              StatusCode::kDataLoss)
        << n;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const Result<State> state = ParseState(bad);
    // The zeros behind the header are not covered.
    if (state.ok()) {
      EXPECT_EQ(state->table, "table") << bit;
    }
  }
}

}  // namespace
}  // namespace forebay::buffer
