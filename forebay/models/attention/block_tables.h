// BlockTables: which blocks of keys each block of queries needs. The same for all layers. Private
// to models/.
#pragma once

#include <cstdint>

#include "forebay/models/packed_attention.h"
#include "forebay/models/row_split.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models::attention {

// How many blocks of queries a row has at hand, and how many blocks of keys it meets in one step.
// Blocks do not reach over the end of a chunk. With the ring there are as many steps as devices,
// and the keys of a step are another device's; else there is one step, with the keys of the whole
// row.
struct BlockCounts {
  int64_t steps, query_blocks, key_blocks;
  int64_t key_chunks, key_chunk_length;
};
BlockCounts CountBlocks(const RowSplit& split, bool ring, const AttentionBlocks& blocks);

// Legend: S steps, Q = B * query_blocks, J = key_blocks, m queries and n keys of a block.
//
// Of segments [B, T] at hand: first and last block of keys [S, Q] for each block of queries (none
// where last < first); places of the blocks of queries [Q] and their segments [Q, m]; places of the
// blocks of keys [S, J] and their segments [S, B * J, n]. All s32, in the order of Operand.
//
// The bounds are those of the smallest and largest segment in each block, so that any order of
// segments is right, and rising ids (as packing writes them) skip all that can be skipped.
xla::Values BlockTables(xla::Value segments_BT, const RowSplit& split, bool ring,
                        const AttentionBlocks& blocks);

}  // namespace forebay::models::attention
