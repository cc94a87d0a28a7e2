// What sampling should do, written from the definitions in engine.h as plainly as possible, and the
// statistics that compare draws with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "forebay/rollout/engine.h"

namespace forebay::rollout {

// The probability of every token after request.prompt and `sampled`, given the model's logits.
// Temperature 0: the distribution of temperature 1 after bias and penalties.
std::vector<double> ReferenceProbabilities(std::span<const float> logits,
                                           const GenerateRequest& request,
                                           std::span<const int32_t> sampled);

// Pearson's statistic of `counts` against `probabilities`, over the tokens that can be drawn.
double ChiSquare(const std::vector<int64_t>& counts, const std::vector<double>& probabilities);
// What a correct sampler exceeds once in ten thousand seeds (Wilson and Hilferty's approximation).
double ChiSquareLimit(size_t degrees);

}  // namespace forebay::rollout
