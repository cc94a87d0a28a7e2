// Token weights: how the losses of single tokens become one number.
//
// The weight of each token is fixed on the host over the whole batch, so that the loss in the
// program is a plain weighted sum. The result then depends neither on how sequences were packed
// into rows nor on how rows were split into micro-batches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace forebay::learner {

enum class Aggregation {
  kTokenMean,                // 1 / (loss tokens of the batch)
  kSequenceMeanOfTokenMean,  // 1 / (sequences * loss tokens of this sequence)
  kSequenceMeanOfTokenSum,   // 1 / sequences
  kSequenceMeanTokenScale,   // 1 / (sequences * token_scale): the constant of Dr.GRPO
};

// "token_mean", "sequence_mean_of_token_mean", "sequence_mean_of_token_sum",
// "sequence_mean_token_scale"
std::optional<Aggregation> ParseAggregation(std::string_view name);
std::string_view AggregationName(Aggregation aggregation);

struct AggregationOptions {
  Aggregation mode = Aggregation::kTokenMean;
  // Tokens; only for kSequenceMeanTokenScale. 0: the largest count of loss tokens in the batch.
  double token_scale = 0;
};

// For each sequence, the weight of each of its loss tokens. Sequences without loss tokens weigh
// nothing and do not count as sequences; without any loss token all weights are 0. CHECKs counts >=
// 0 and token_scale >= 0.
std::vector<double> TokenWeights(const AggregationOptions& options,
                                 std::span<const int64_t> loss_tokens);

}  // namespace forebay::learner
