// What the two forms of packed attention share. Private to models/.
//
// xs of both forms stand in the order of Operand; the window only if there is one.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/packed_attention.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models::attention {

// Finite, so that no row can give inf - inf; far below any score, so that its exponential is an
// exact zero.
inline constexpr double kMasked = -1e30;

// Sizes and options of one call.
struct Setup {
  HeadShape heads;
  int64_t rows, length;  // B, T of the queries
  int64_t key_length;    // T of the keys
  AttentionBlocks blocks;
  double scale, softcap;
  bool has_window;

  int64_t tokens() const { return rows * length; }
};

// kShared: the square form's bias, the other's first blocks. kKey...: of the tokens of the keys.
// kQueryPlace: of the first query of a row among its keys (s32 scalar).
enum Operand {
  kQuery,
  kKey,
  kValue,
  kCos,
  kSin,
  kSegments,
  kShared,
  kKeyCos,
  kKeySin,
  kKeySegments,
  kQueryPlace,
  kWindow
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

// -> attended [N, A * H] and the log-sum-exps that the backward pass wants.
xla::Values SquareForward(const Setup& setup, std::span<const xla::Value> xs);
xla::Values SquareBackward(const Setup& setup, std::span<const xla::Value> xs,
                           std::span<const xla::Value> outputs, xla::Value cotangent);
xla::Values BlocksForward(const Setup& setup, std::span<const xla::Value> xs);
xla::Values BlocksBackward(const Setup& setup, std::span<const xla::Value> xs,
                           std::span<const xla::Value> outputs, xla::Value cotangent);

// [B, T, T] f32: 0 where a token may look, kMasked elsewhere.
xla::Value SquareBias(xla::Value segments_BT);
// [B * blocks of queries] s32: the first block of keys with a segment of the block of queries;
// where all of it is padding, past the last block.
xla::Value FirstBlocks(xla::Value query_segments_BT, xla::Value key_segments_BT,
                       const AttentionBlocks& blocks);

}  // namespace forebay::models::attention
