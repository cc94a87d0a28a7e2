#include "forebay/learner/stats.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

namespace forebay::learner {

double Mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double SampleStdDev(std::span<const double> values) {
  if (values.size() < 2) return 0;
  if (std::ranges::adjacent_find(values, std::ranges::not_equal_to{}) == values.end()) return 0;
  const double mean = Mean(values);
  double sum = 0;
  for (const double x : values) sum += (x - mean) * (x - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

}  // namespace forebay::learner
