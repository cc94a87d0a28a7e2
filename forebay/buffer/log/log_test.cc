// The forms of the log: checksums, records, and what a scan finds in any bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

TEST(Crc32c, KnownValuesAndBothWays) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283U);  // RFC 3720's check value
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(""), 0U);
  Rng rng(1);
  std::string bytes;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Crc32c(bytes), Crc32cPortable(bytes));
    const size_t cut = bytes.empty() ? 0 : rng.Below(bytes.size());
    const std::string_view all = bytes;
    EXPECT_EQ(Crc32c(all.substr(cut), Crc32c(all.substr(0, cut))), Crc32c(all));
    bytes += static_cast<char>(rng.Below(256));
  }
}

TEST(Record, LeasesRoundTripAndRefuseEveryTruncation) {
  const LeaseRecord lease{.sequence = 3, .learner_version = 2, .trajectory_ids = {1, 2, 3}};
  const std::string whole = EncodeLease(lease);
  EXPECT_EQ(*ParseLease(whole), lease);
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(ParseLease(std::string_view(whole).substr(0, n)).ok()) << n;
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

// A header block, then records 1, 2, ... of random size in segment 7.
std::string MakeSegment(Rng& rng, int count) {
  std::string bytes = EncodeSegmentHeader({.number = 7, .group_size = 1});
  for (int i = 1; i <= count; ++i) {
    const TrajectoryId id{.trajectory_id = 100 + i, .group_id = i};
    const std::string payload =
        Encode(SimpleTrajectory(id, 1, 4, static_cast<int32_t>(1 + rng.Below(40))));
    RecordHeader header{.type = RecordType::kTrajectory, .sequence = i, .segment = 7};
    header.SetId(id);
    AppendRecord(header, payload, bytes);
  }
  return bytes;
}

TEST(Segment, ScanFindsEveryRecordAndIgnoresUnusedSpace) {
  Rng rng(2);
  std::string bytes = MakeSegment(rng, 20);
  const size_t end = bytes.size();
  bytes.resize(end + 5000, '\0');
  const SegmentScan scan = ScanSegment(bytes, 7);
  ASSERT_EQ(scan.records.size(), 20U);
  EXPECT_EQ(scan.data_end, end);
  EXPECT_TRUE(scan.damaged.empty());
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(scan.records[i].header.sequence, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(Decode(scan.records[i].payload)->id.trajectory_id, 101 + static_cast<int64_t>(i));
  }
  // What an earlier life of a recycled segment left is none of this one's, and no damage.
  EXPECT_TRUE(ScanSegment(bytes, 8).records.empty());
  EXPECT_TRUE(ScanSegment(bytes, 8).damaged.empty());
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
    EXPECT_LE(scan.damaged[0].offset, at);
    ASSERT_FALSE(scan.damaged[0].lost.empty()) << at;  // whose record it was can still be told
  }
}

TEST(Segment, TruncationAnywhereKeepsWhatIsBefore) {
  Rng rng(4);
  const std::string good = MakeSegment(rng, 4);
  const std::vector<ScannedRecord> records = ScanSegment(good, 7).records;
  for (size_t n = 0; n < good.size(); n += 7) {
    std::string cut = good.substr(0, n);
    if (n % 2 == 0) cut.resize(good.size() + 256, '\0');  // as a preallocated file is
    const SegmentScan scan = ScanSegment(cut, 7);
    size_t whole = 0;
    while (whole < 4 && records[whole].offset + 64 + records[whole].payload.size() <= n) ++whole;
    EXPECT_GE(scan.records.size() + 1, whole) << n;
    for (const DamagedRange& range : scan.damaged) EXPECT_TRUE(range.torn_tail) << n;
  }
}

TEST(Segment, NoiseHasNoRecords) {
  Rng rng(5);
  std::string noise(100000, ' ');
  for (char& c : noise) c = static_cast<char>(rng.Below(256));
  const SegmentScan scan = ScanSegment(noise, 7);
  EXPECT_TRUE(scan.records.empty());
  EXPECT_TRUE(scan.damaged.empty());  // nothing says that it was ever a record
}

TEST(Segment, AHeaderThatClaimsTooMuchIsRefusedBeforeAnythingElse) {
  std::string bytes(kDataBegin, '\0');
  AppendRecord({.type = RecordType::kDispatch, .sequence = 1, .segment = 7}, std::string(1000, 'x'),
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

}  // namespace
}  // namespace forebay::buffer
