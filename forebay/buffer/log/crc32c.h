// CRC32C (Castagnoli), as iSCSI, ext4 and LevelDB use it.
#pragma once

#include <cstdint>
#include <string_view>

namespace forebay::buffer {

// The checksum of `bytes`; pass an earlier result to go on where it ended. By the best means that
// this CPU has.
uint32_t Crc32c(std::string_view bytes, uint32_t crc = 0);
// Copies `from` to `to` (apart from it) and gives the checksum of the copy, whatever somebody else
// writes into the source meanwhile: each byte is read once.
uint32_t Crc32cCopy(char* to, std::string_view from);

// The same by each means apart, for the tests that compare them.
enum class Crc32cMeans : uint8_t {
  kTable = 0,
  kInstruction = 1,  // SSE 4.2
  kFolding = 2,      // AVX-512 with VPCLMULQDQ
};
bool HasCrc32cMeans(Crc32cMeans means);
// This CPU must have the means.
uint32_t Crc32cBy(Crc32cMeans means, std::string_view bytes, uint32_t crc = 0);
uint32_t Crc32cCopyBy(Crc32cMeans means, char* to, std::string_view from);

}  // namespace forebay::buffer
