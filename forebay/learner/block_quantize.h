// Block quantization: f32 arrays as one byte an element and one f32 a block of 256, for optimizer
// states.
//
// A code is a magnitude relative to the block's largest, on a logarithmic scale with 8 steps an
// octave (9 % apart): 0 is zero, and the largest of `levels` codes is the largest itself. With a
// sign 127 levels reach down to 2^-15.75, without one 255 levels to 2^-31.75; so a second moment
// never becomes zero beside a larger one, as it would on a linear scale, and blows up the step.
//
// Rounding is stochastic, and unbiased: an average that decays by 0.95 or 0.999 a step changes by
// less than half the distance of two codes, and would never move with rounding to nearest. The
// random numbers are a hash of (update, array, element): the same run gives the same bits.
#pragma once

#include <cstdint>

#include "forebay/xla/ops.h"

namespace forebay::learner {

inline constexpr int64_t kQuantizeBlock = 256;
inline constexpr int64_t kStepsPerOctave = 8;

// Blocks of an array with `elements`.
inline int64_t QuantizedBlocks(int64_t elements) {
  return (elements + kQuantizeBlock - 1) / kQuantizeBlock;
}

struct Quantized {
  xla::Value codes;   // u8 [..., blocks, 256]
  xla::Value scales;  // f32 [..., blocks]: the largest magnitude of each
};

// x f32 [..., blocks, 256]; `seed` u32 scalar.
Quantized QuantizeBlocks(xla::Value x, bool is_signed, xla::Value seed);
// f32 [..., blocks, 256].
xla::Value DequantizeBlocks(const Quantized& q, bool is_signed);

}  // namespace forebay::learner
