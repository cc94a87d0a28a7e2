// What the forms of packed attention share. Private to models/.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/packed_attention.h"
#include "forebay/models/row_split.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models::attention {

// Finite, so that no row can give inf - inf; far below any score, so that its exponential is an
// exact zero.
inline constexpr double kMasked = -1e30;

// Sizes and options of one call.
struct Setup {
  HeadShape heads;
  int64_t rows, length;  // B, T at hand
  RowSplit split;
  bool ring;
  AttentionBlocks blocks;
  double scale, softcap;
  bool has_window;

  int64_t tokens() const { return rows * length; }
};

// xs of all forms stand in this order; from kShared on they are RowMask::values. kWindow is 0 where
// there is none.
enum Operand {
  kQuery,
  kKey,
  kValue,
  kCos,
  kSin,
  kWindow,
  kSegments,
  kShared,
  kBias = kShared,   // of the square form, which has no others
  kFirst = kShared,  // of the block form, see BlockTables
  kLast,
  kPlaces,
  kQuerySegments,
  kKeyPlaces,
  kKeySegments,
  kHostPlaces = kShared,  // of the host form, see HostTables
  kHostKeySegments,
};

// [P, m, k] x [P, n, k] -> [P, m, n]: scores of queries against keys. Accumulated and returned in
// f32, like the others.
xla::Value DotNT(xla::Value a, xla::Value b);
// [P, m, k] x [P, k, n] -> [P, m, n].
xla::Value DotNN(xla::Value a, xla::Value b);
// [P, k, m] x [P, k, n] -> [P, m, n].
xla::Value DotTN(xla::Value a, xla::Value b);

// x [N, count * H], rotated head by head in f32 and scaled; in x's dtype.
xla::Value RotateHeads(xla::Value x, const RopeTables& rope, int64_t head_dim, double scale,
                       bool inverse);

// x [N, n] with zeros where the segment is 0.
xla::Value ZeroPadding(xla::Value x, xla::Value segments_BT);

// cap * tanh(x / cap), or x without a cap. And the factor of its gradient, from its result: 1 - (y
// / cap)^2.
xla::Value SoftCap(xla::Value x, double cap);
xla::Value SoftCapGradient(xla::Value d_result, xla::Value result, double cap);

// -> attended [N, A * H] and what else the backward pass wants.
xla::Values SquareForward(const Setup& setup, std::span<const xla::Value> xs);
xla::Values SquareBackward(const Setup& setup, std::span<const xla::Value> xs,
                           std::span<const xla::Value> outputs, xla::Value cotangent);
xla::Values BlocksForward(const Setup& setup, std::span<const xla::Value> xs);
xla::Values BlocksBackward(const Setup& setup, std::span<const xla::Value> xs,
                           std::span<const xla::Value> outputs, xla::Value cotangent);

xla::Values HostForward(const Setup& setup, std::span<const xla::Value> xs);
xla::Values HostBackward(const Setup& setup, std::span<const xla::Value> xs,
                         std::span<const xla::Value> outputs, xla::Value cotangent);

// Places of the tokens at hand in their rows [T], and the segments of whole rows [B, R].
xla::Values HostTables(xla::Value segments_BT, const RowSplit& split);
// [B, T, T] f32: 0 where a token may look, kMasked elsewhere.
xla::Value SquareBias(xla::Value segments_BT);

}  // namespace forebay::models::attention
