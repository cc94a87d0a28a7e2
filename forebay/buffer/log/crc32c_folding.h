// CRC32C by folding: the 64-bit carry-less products of a whole AVX-512 register at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay::buffer {

// Whole blocks only: below one the instruction is as fast.
inline constexpr size_t kFoldedBlockBytes = 256;

bool HasFolding();
// The state (not inverted) after `bytes` more, a multiple of kFoldedBlockBytes and not zero. With
// `to`, they are copied there, and the state is that of the copy. Only if HasFolding().
uint32_t FoldCrc32c(const char* at, size_t bytes, uint32_t state, char* to);

}  // namespace forebay::buffer
