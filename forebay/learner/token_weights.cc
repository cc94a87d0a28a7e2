#include "forebay/learner/token_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"

namespace forebay::learner {

std::optional<Aggregation> ParseAggregation(std::string_view name) {
  for (const auto mode :
       {Aggregation::kTokenMean, Aggregation::kSequenceMeanOfTokenMean,
        Aggregation::kSequenceMeanOfTokenSum, Aggregation::kSequenceMeanTokenScale}) {
    if (AggregationName(mode) == name) return mode;
  }
  return std::nullopt;
}

std::string_view AggregationName(Aggregation aggregation) {
  switch (aggregation) {
    case Aggregation::kTokenMean:
      return "token_mean";
    case Aggregation::kSequenceMeanOfTokenMean:
      return "sequence_mean_of_token_mean";
    case Aggregation::kSequenceMeanOfTokenSum:
      return "sequence_mean_of_token_sum";
    case Aggregation::kSequenceMeanTokenScale:
      return "sequence_mean_token_scale";
  }
  FB_CHECK(false, "unknown aggregation");
}

std::vector<double> TokenWeights(const AggregationOptions& options,
                                 std::span<const int64_t> loss_tokens) {
  FB_CHECK(options.token_scale >= 0, "token_scale");
  double tokens = 0, sequences = 0, longest = 0;
  for (const int64_t count : loss_tokens) {
    FB_CHECK(count >= 0, "loss tokens");
    const auto n = static_cast<double>(count);
    tokens += n;
    sequences += count > 0 ? 1 : 0;
    longest = std::max(longest, n);
  }
  const double scale = options.token_scale > 0 ? options.token_scale : longest;

  std::vector<double> weights(loss_tokens.size(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (loss_tokens[i] == 0) continue;
    switch (options.mode) {
      case Aggregation::kTokenMean:
        weights[i] = 1 / tokens;
        break;
      case Aggregation::kSequenceMeanOfTokenMean:
        weights[i] = 1 / (sequences * static_cast<double>(loss_tokens[i]));
        break;
      case Aggregation::kSequenceMeanOfTokenSum:
        weights[i] = 1 / sequences;
        break;
      case Aggregation::kSequenceMeanTokenScale:
        weights[i] = 1 / (sequences * scale);
        break;
    }
  }
  return weights;
}

}  // namespace forebay::learner
