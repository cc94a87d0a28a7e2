// Mean and sample standard deviation: the one place that fixes the convention (n - 1 in the
// denominator).
#pragma once

#include <span>

namespace forebay::learner {

// 0 for no values.
double Mean(std::span<const double> values);

// With n - 1 in the denominator. Exactly 0 for fewer than two values and when all values are equal,
// where rounding of the mean would otherwise leave a tiny residue that a division blows up.
double SampleStdDev(std::span<const double> values);

}  // namespace forebay::learner
