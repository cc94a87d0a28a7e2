// Block quantization: f32 arrays as one byte an element and one f32 a block, for optimizer states.
//
// A block is a stretch of a row (the last axis of a parameter): the largest power of two up to 256
// elements that divides it. So blocks, and with them the state of a parameter, do not depend on the
// mesh or on how layers are laid out: codes lie as the parameter does, and the scales too, unless
// the mesh cuts through blocks; then every device along that axis has all scales of its rows.
//
// A code is a magnitude relative to the block's largest, on a logarithmic scale with 8 steps an
// octave (9 % apart): 0 is zero, and the largest of `levels` codes is the largest itself. With a
// sign 127 levels reach down to 2^-15.75, without one 255 levels to 2^-31.75; so a second moment
// never becomes zero beside a larger one, as it would on a linear scale, and blows up the step.
//
// Rounding is stochastic, and unbiased: an average that decays by 0.95 or 0.999 a step changes by
// less than half the distance of two codes, and would never move with rounding to nearest. The
// random numbers are a hash of (update, tensor's name, element of all layers' tensors of this
// name), whatever the mesh and the layout of the layers: the same run gives the same bits.
#pragma once

#include <cstdint>

#include "forebay/xla/ops.h"

namespace forebay::learner {

inline constexpr int64_t kQuantizeBlock = 256;  // at the most
inline constexpr int64_t kStepsPerOctave = 8;

// Elements of a block of rows of this length (>= 1).
constexpr int64_t QuantizeBlockOf(int64_t row) {
  const int64_t power = row & -row;
  return power < kQuantizeBlock ? power : kQuantizeBlock;
}

// Uniform in [0, 1), 24 bits, one for each u32 of `numbers`: a hash of it and the seed, a u32
// scalar.
xla::Value HashUniform(xla::Value numbers, xla::Value seed);

// u8 codes of x, f32 [..., blocks, elements], given each block's largest magnitude [..., blocks]
// and draws like x from HashUniform.
xla::Value EncodeBlocks(xla::Value x, xla::Value scales, bool is_signed, xla::Value draws);
// f32 [..., blocks, elements].
xla::Value DecodeBlocks(xla::Value codes, xla::Value scales, bool is_signed);

}  // namespace forebay::learner
