// What is wrong with a part of a segment that its checksums let pass: shared by verify and repair.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/segment.h"

namespace forebay::buffer {

// "" when the payload is what the header says.
std::string CheckRecord(const ScannedRecord& record);
// "" when the index of the segment with this content is right, or it has none. `scan`: of `bytes`.
std::string CheckIndex(LogFile& file, std::string_view bytes, uint32_t number,
                       const SegmentScan& scan);

}  // namespace forebay::buffer
