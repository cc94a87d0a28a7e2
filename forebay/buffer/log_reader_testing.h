// What the tests of the tools share: a folder with a life in it, and ways to damage it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"

namespace forebay::buffer {

inline constexpr int32_t kToolGroupSize = 2;

BufferOptions ToolOptions(const std::string& folder);
std::unique_ptr<Buffer> OpenToolBuffer(const BufferOptions& options, int64_t committed = 0,
                                       Recovery* recovery = nullptr);
// Groups 0 .. 9 are played. Batches 1 (groups 0, 1) and 2 (groups 2, 3) are trained and committed,
// batch 3 (groups 4, 5) is leased, one member of group 10 is rejected and the other in flight.
// Closed.
void LiveALife(const std::string& folder, bool retain = true);

std::unique_ptr<LogReader> OpenReader(const std::string& folder);
std::vector<LogRecord> Records(LogReader& reader, const LogFilter& filter = {});
std::vector<LogDamage> Verified(LogReader& reader, VerifyTotals* totals = nullptr);
// Every file below the folder: name -> content.
std::vector<std::pair<std::string, std::string>> Snapshot(const std::string& folder);

void FlipByte(const std::string& path, int64_t offset);
void WriteAt(const std::string& path, int64_t offset, std::string_view bytes);
std::string PathOf(LogReader& reader, uint32_t segment);

}  // namespace forebay::buffer
