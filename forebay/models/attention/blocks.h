// Blocks: the block form's work on the keys of one step, and how heads are cut into blocks. Private
// to models/.
//
// Legend: B rows, A query heads, K key/value heads, G = A / K, H head size; m queries and n keys of
// a block, M = G * m, Q blocks of queries in all, J blocks of keys a row.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/models/attention/block_tables.h"
#include "forebay/models/attention/form.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models::attention {

class Blocks {
 public:
  explicit Blocks(const Setup& setup)
      : setup_(setup),
        heads_(setup.heads),
        counts_(CountBlocks(setup.split, setup.ring, setup.blocks)),
        queries_(setup.blocks.queries),
        keys_(setup.blocks.keys),
        flat_(setup.heads.group() * setup.blocks.queries) {}

  // What a step knows of its keys, [Q], [J], [B * J, n]: slices of RowMask::values.
  struct Step {
    xla::Value first, last, key_places, key_segments;
  };
  struct Keys {
    xla::Value key, value;  // [B * J, K, n, H]
  };

  // Rotated, scaled, zero at padding: [Q, K, M, H], and keys and values [N, K * H].
  xla::Value Queries(std::span<const xla::Value> xs) const;
  xla::Value RotatedKey(std::span<const xla::Value> xs) const;
  xla::Value RealValue(std::span<const xla::Value> xs) const;

  // [N, A * H] -> [Q, K, M, H] and back; [N, K * H] of the keys of a step -> [B * J, K, n, H] and
  // back.
  xla::Value DivideQueries(xla::Value x) const;
  xla::Value JoinQueries(xla::Value x) const;
  xla::Value DivideKeys(xla::Value x) const;
  xla::Value JoinKeys(xla::Value x) const;
  // Sums over each head of x [N, A * H] -> [Q, K, M, 1].
  xla::Value HeadSums(xla::Value x) const;

  // Peak, sum and weighted values over the keys seen so far, [Q, K, M, 1 or H], with those of this
  // step; `state` empty: none so far.
  xla::Values Forward(const Step& step, const Keys& keys, xla::Value query,
                      const xla::Values& state, std::span<const xla::Value> xs) const;
  // The end of all steps: attended [Q, K, M, H] and log-sum-exps [Q, K, M, 1].
  static xla::Values Finish(const xla::Values& state);

  // Of all queries: cut into blocks, their cotangent, log-sum-exps and delta.
  struct Asked {
    xla::Value query, d_out, log_sum, delta;
  };
  // -> d(keys), d(values) [B * J, K, n, H] and d(query) [Q, K, M, H] of this step alone, f32.
  xla::Values Backward(const Step& step, const Keys& keys, const Asked& asked,
                       std::span<const xla::Value> xs) const;

 private:
  struct Block;
  xla::Values Entries(const Step& step, std::span<const xla::Value> xs) const;
  xla::Value Divide(xla::Value x, int64_t chunks, int64_t block) const;
  xla::Value Join(xla::Value x, int64_t chunks, int64_t length, int64_t block) const;
  xla::Value Masked(xla::Value scores, const Block& block, xla::Value j, const Step& step,
                    std::span<const xla::Value> xs) const;
  xla::Values ForwardBlock(const Block& block, xla::Value query, const xla::Values& state,
                           const Step& step, const Keys& keys,
                           std::span<const xla::Value> xs) const;
  xla::Values BackwardBlock(const Block& block, const Asked& asked, const xla::Values& sums,
                            const Step& step, const Keys& keys,
                            std::span<const xla::Value> xs) const;

  Setup setup_;
  HeadShape heads_;
  BlockCounts counts_;
  int64_t queries_, keys_, flat_;  // m, n, M
};

}  // namespace forebay::models::attention
