// The block formats of GGUF files whose numbers have 5 bits, or whose blocks of 256 have 6-bit
// scales within ("K-quants"). Private to weights/.
#pragma once

#include <cstddef>

namespace forebay::weights {

// One block each, from its bytes: 22 or 24 bytes make 32 numbers; 144, 176 or 210 make 256.
void DequantizeQ5_0(const std::byte* in, float* out);
void DequantizeQ5_1(const std::byte* in, float* out);
void DequantizeQ4K(const std::byte* in, float* out);
void DequantizeQ5K(const std::byte* in, float* out);
void DequantizeQ6K(const std::byte* in, float* out);

}  // namespace forebay::weights
