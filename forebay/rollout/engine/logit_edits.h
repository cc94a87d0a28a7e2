// LogitEdits: what the bias and penalties of the running requests change in their logits.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "forebay/rollout/engine.h"

namespace forebay::rollout {

// One row a slot, each with at most `capacity` entries: tokens whose logit is not left alone. An
// edited logit is pen(l + bias) - subtract, where pen divides what is positive by `factor` and
// multiplies the rest. Few tokens of a vocabulary are ever edited, so lists travel to the device
// and not whole rows.
//
// Pure bookkeeping; not thread-safe.
class LogitEdits {
 public:
  // Whether this request edits logits at all.
  static bool Needs(const GenerateRequest& request);

  // For sequences of at most `context` tokens.
  LogitEdits(int64_t slots, int64_t vocab_size, int64_t context);

  // Starts a slot's row with the request's bias and the tokens of its prompt.
  void Begin(int64_t slot, const GenerateRequest& request);
  // The slot's sequence goes on with this token.
  void Sampled(int64_t slot, int32_t token);
  void End(int64_t slot);

  bool any() const { return active_ > 0; }
  int64_t capacity() const { return capacity_; }
  // The most entries that a row has now.
  int64_t longest() const;

  // The first `width` entries of all rows, [slots, width]; width is at least longest() and at most
  // capacity(). Unused ones have token -1.
  struct Arrays {
    std::vector<int32_t> tokens;
    std::vector<float> biases, factors, subtract;
  };
  Arrays Pack(int64_t width) const;

 private:
  struct Entry {
    int32_t token;
    float bias = 0, factor = 1, subtract = 0;
    int64_t count = 0;  // times sampled
  };
  struct Row {
    bool active = false;
    float repetition = 1, presence = 0, frequency = 0;
    std::vector<Entry> entries;
    std::unordered_map<int32_t, size_t> places;  // of tokens in entries
  };
  static Entry& At(Row& row, int32_t token);

  const int64_t capacity_;
  int64_t active_ = 0;
  std::vector<Row> rows_;
};

}  // namespace forebay::rollout
