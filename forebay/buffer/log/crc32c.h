// CRC32C (Castagnoli), as iSCSI, ext4 and LevelDB use it.
#pragma once

#include <cstdint>
#include <string_view>

namespace forebay::buffer {

// The checksum of `bytes`; pass an earlier result to go on where it ended. Uses the CPU's
// instruction where there is one.
uint32_t Crc32c(std::string_view bytes, uint32_t crc = 0);

// Without the instruction: the same result, for other CPUs and for the test that compares them.
uint32_t Crc32cPortable(std::string_view bytes, uint32_t crc = 0);

}  // namespace forebay::buffer
