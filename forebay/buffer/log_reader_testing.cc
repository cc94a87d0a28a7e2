#include "forebay/buffer/log_reader_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {

BufferOptions ToolOptions(const std::string& folder) {
  return {.folder = folder,
          .durability = Durability::kOs,
          .group_size = kToolGroupSize,
          .max_staleness = 100,
          .segment_bytes = 64 << 10,
          .disk_bytes_max = 4 << 20,
          .record_bytes_max = 16 << 10,
          .retain_committed = true};
}

std::unique_ptr<Buffer> OpenToolBuffer(const BufferOptions& options, int64_t committed,
                                       Recovery* recovery) {
  Result<std::unique_ptr<Buffer>> buffer = Buffer::Open(options, committed, {}, recovery);
  FB_CHECK(buffer.ok(), buffer.status().ToString());
  return std::move(*buffer);
}

void LiveALife(const std::string& folder, bool retain) {
  BufferOptions options = ToolOptions(folder);
  options.retain_committed = retain;
  const std::unique_ptr<Buffer> buffer = OpenToolBuffer(options);
  for (int64_t group = 0; group < 10; ++group) {
    ASSERT_TRUE(PlayGroup(*buffer, group, kToolGroupSize, group).ok());
  }
  for (int64_t batch = 1; batch <= 3; ++batch) {
    const Result<Batch> leased = buffer->Lease(2, 10 + batch, In(30));
    ASSERT_TRUE(leased.ok()) << leased.status().ToString();
    ASSERT_EQ(leased->sequence, batch);
    if (batch == 3) break;
    ASSERT_TRUE(buffer->MarkTrained(batch).ok());
    ASSERT_TRUE(buffer->Commit(batch).ok());
  }
  ASSERT_TRUE(buffer->Dispatch(TestId(10, 0)).ok());
  ASSERT_TRUE(buffer->Dispatch(TestId(10, 1)).ok());
  ASSERT_TRUE(buffer->Reject(TestId(10, 0), RejectReason::kOutcome).ok());
  buffer->Close();
}

std::unique_ptr<LogReader> OpenReader(const std::string& folder) {
  Result<std::unique_ptr<LogReader>> reader = LogReader::Open(folder);
  FB_CHECK(reader.ok(), reader.status().ToString());
  return std::move(*reader);
}

std::vector<LogRecord> Records(LogReader& reader, const LogFilter& filter) {
  std::vector<LogRecord> records;
  EXPECT_TRUE(reader
                  .ForEach(filter,
                           [&](const LogRecord& record) {
                             records.push_back(record);
                             records.back().encoded = {};  // not valid after the call
                             return true;
                           })
                  .ok());
  return records;
}

std::vector<LogDamage> Verified(LogReader& reader, VerifyTotals* totals) {
  std::vector<LogDamage> found;
  VerifyTotals unused;
  const Status status = reader.Verify(
      [&](const LogDamage& damage) {
        if (!damage.harmless) found.push_back(damage);
      },
      totals == nullptr ? &unused : totals);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return found;
}

std::vector<std::pair<std::string, std::string>> Snapshot(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files.emplace_back(std::filesystem::relative(entry.path(), folder).string(),
                       std::string(std::istreambuf_iterator<char>(in), {}));
  }
  std::ranges::sort(files);
  return files;
}

void FlipByte(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  FB_CHECK(file.is_open(), path);
  file.seekg(offset);
  const auto byte = static_cast<char>(file.get() ^ 0x40);
  file.seekp(offset);
  file.put(byte);
  FB_CHECK(file.good(), path);
}

void WriteAt(const std::string& path, int64_t offset, std::string_view bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  FB_CHECK(file.is_open(), path);
  file.seekp(offset);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  FB_CHECK(file.good(), path);
}

std::string PathOf(LogReader& reader, uint32_t segment) {
  for (const SegmentInfo& info : reader.segments()) {
    if (info.number == segment) return reader.folder() + "/" + info.file;
  }
  FB_CHECK(false, "no such segment");
  return {};
}

}  // namespace forebay::buffer
