#include "forebay/rollout/engine/reference_sampling_testing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "forebay/rollout/engine.h"

namespace forebay::rollout {
namespace {

void Normalise(std::vector<double>* p) {
  const double sum = std::accumulate(p->begin(), p->end(), 0.0);
  for (double& x : *p) x /= sum;
}

int64_t CountOf(std::span<const int32_t> tokens, int32_t token) {
  return std::count(tokens.begin(), tokens.end(), token);
}

}  // namespace

std::vector<double> ReferenceProbabilities(std::span<const float> logits,
                                           const GenerateRequest& request,
                                           std::span<const int32_t> sampled) {
  std::vector<double> l(logits.begin(), logits.end());
  for (const auto& [token, bias] : request.logit_bias) l[static_cast<size_t>(token)] += bias;
  for (size_t i = 0; i < l.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    const int64_t count = CountOf(sampled, token);
    if (count > 0 || CountOf(request.prompt, token) > 0) {
      l[i] = l[i] > 0 ? l[i] / request.repetition_penalty : l[i] * request.repetition_penalty;
    }
    l[i] -= request.frequency_penalty * static_cast<double>(count);
    if (count > 0) l[i] -= request.presence_penalty;
  }
  const double temperature = request.temperature > 0 ? request.temperature : 1;
  const double top = *std::max_element(l.begin(), l.end());
  std::vector<double> p;
  for (const double x : l) p.push_back(std::exp((x - top) / temperature));
  if (request.temperature > 0) {
    for (double& x : p) {
      if (x < request.min_p) x = 0;  // the most likely token has 1
    }
    std::vector<double> sorted = p;
    std::sort(sorted.rbegin(), sorted.rend());
    if (request.top_k > 0 && static_cast<size_t>(request.top_k) < sorted.size()) {
      const double last = sorted[static_cast<size_t>(request.top_k) - 1];
      for (double& x : p) {
        if (x < last) x = 0;
      }
    }
    Normalise(&p);
    if (request.top_p < 1) {
      sorted = p;
      std::sort(sorted.rbegin(), sorted.rend());
      double sum = 0, last = 0;
      for (const double x : sorted) {
        if (sum >= request.top_p) break;
        sum += x;
        last = x;
      }
      for (double& x : p) {
        if (x < last) x = 0;
      }
    }
  }
  Normalise(&p);
  return p;
}

double ChiSquare(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (probabilities[i] == 0) continue;
    const double expected = total * probabilities[i];
    const double difference = static_cast<double>(counts[i]) - expected;
    sum += difference * difference / expected;
  }
  return sum;
}

double ChiSquareLimit(size_t degrees) {
  const double d = static_cast<double>(degrees), z = 3.72;
  return d * std::pow(1 - 2 / (9 * d) + z * std::sqrt(2 / (9 * d)), 3);
}

}  // namespace forebay::rollout
