// Problem: one call of attention on the host, as the code for each kind of processor sees it.
// Private to models/.
//
// Legend: B rows, T queries of a row, R keys of a row, A query heads, K key/value heads, G = A / K,
// H head size. A tile is a block of m queries, times the G heads that share a key, against a block
// of n keys.
//
// This header is compiled for several processors: no function of it may be shared between them, so
// there is none.
#pragma once

#include <cstdint>

namespace forebay::models::attention::host {

// Some tokens of one segment, and which blocks of the other side they meet: [first, last], in
// rising order of places; none where last < first.
struct Block {
  int32_t token;  // the first, counted through all rows
  int32_t place;  // its place in the row
  int32_t count;
  int32_t first, last;
};

inline constexpr int32_t kKeysMax = 64;  // of a block

struct Problem {
  int64_t kv_heads, group, head_dim;
  float softcap;   // 0: none
  int32_t window;  // a query sees keys of places > place - window

  // Of the rotation of queries and keys, [tokens, H / 2], and a factor of the queries.
  const float *query_cos, *query_sin, *key_cos, *key_sin;
  float scale;

  // Of f32 or bf16, but for those that are floats here.
  const void *query, *key, *value;  // [B * T, A * H], [B * R, K * H]
  void* out;                        // like query; a result of the forward pass
  float* log_sum;                   // [B * T, A]; another
  // Of the backward pass: the cotangent of out, and its results.
  const void* d_out;
  float *d_query, *d_key, *d_value;

  int64_t queries_max;  // of a block
  const Block* query_blocks;
  const Block* key_blocks;
};

// Which of the parts of d_query one is.
struct Part {
  bool is_first, is_last;
};

// What each kind of processor computes, in pairs for f32 and bf16. `scratch`: scratch_floats() of
// them, of one thread, aligned to 64 bytes.
struct Code {
  int64_t (*scratch_floats)(const Problem& problem);

  // All of a block of queries: writes out and log_sum.
  void (*forward[2])(const Problem& problem, const Block& queries, int64_t head, float* scratch);

  // A block of keys: begin, one pair for each block of queries that it meets, end, which writes
  // d_key and d_value. A pair leaves its part of d_query in scratch; add writes or adds it.
  void (*backward_begin[2])(const Problem& problem, const Block& keys, int64_t head,
                            float* scratch);
  void (*backward_pair[2])(const Problem& problem, const Block& keys, const Block& queries,
                           int64_t head, float* scratch);
  void (*backward_add)(const Problem& problem, const Block& queries, int64_t head, Part part,
                       float* scratch);
  void (*backward_end)(const Problem& problem, const Block& keys, int64_t head, float* scratch);
};

// For any processor; and for x86-64 with AVX2 and with AVX-512, null where this one has not.
const Code* PortableCode();
const Code* Avx2Code();
const Code* Avx512Code();

}  // namespace forebay::models::attention::host
