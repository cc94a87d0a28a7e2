#include "forebay/learner/micro_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "forebay/base/check.h"
#include "forebay/learner/packing.h"

namespace forebay::learner {
namespace {

// Writes one sequence from flat column `at` on.
void FillSequence(const TrainSequence& sequence, int32_t segment, size_t at, MicroBatch* batch) {
  const size_t n = sequence.tokens.size();
  FB_CHECK(sequence.loss_mask.size() == n && sequence.rollout_logprobs.size() == n, "columns");
  const auto tokens = batch->plane(kTokens).subspan(at, n);
  const auto targets = batch->plane(kTargets).subspan(at, n);
  const auto segments = batch->plane(kSegments).subspan(at, n);
  const auto positions = batch->plane(kPositions).subspan(at, n);
  const auto weights = batch->plane(kWeights).subspan(at, n);
  const auto advantages = batch->plane(kAdvantages).subspan(at, n);
  const auto rollout = batch->plane(kRolloutLogprobs).subspan(at, n);
  const auto inverse_temperature = batch->plane(kInverseTemperature).subspan(at, n);
  for (size_t t = 0; t < n; ++t) {
    tokens[t] = sequence.tokens[t];
    segments[t] = segment;
    positions[t] = static_cast<int32_t>(t);
    inverse_temperature[t] = static_cast<float>(1 / sequence.temperature);
    if (t + 1 == n) break;
    targets[t] = sequence.tokens[t + 1];
    if (sequence.loss_mask[t + 1] == 0) continue;
    weights[t] = static_cast<float>(sequence.token_weight);
    advantages[t] = static_cast<float>(sequence.advantage);
    rollout[t] = sequence.rollout_logprobs[t + 1];
    ++batch->loss_tokens;
  }
  batch->real_tokens += static_cast<int64_t>(n);
}

}  // namespace

std::string BucketShape::ToString() const { return fmt::format("[{} x {}]", rows, length); }

std::span<int32_t> MicroBatch::plane(IntPlane p) {
  const auto n = static_cast<size_t>(shape.tokens());
  return std::span<int32_t>(ints).subspan(static_cast<size_t>(p) * n, n);
}
std::span<float> MicroBatch::plane(FloatPlane p) {
  const auto n = static_cast<size_t>(shape.tokens());
  return std::span<float>(floats).subspan(static_cast<size_t>(p) * n, n);
}
std::span<const int32_t> MicroBatch::plane(IntPlane p) const {
  const auto n = static_cast<size_t>(shape.tokens());
  return std::span<const int32_t>(ints).subspan(static_cast<size_t>(p) * n, n);
}
std::span<const float> MicroBatch::plane(FloatPlane p) const {
  const auto n = static_cast<size_t>(shape.tokens());
  return std::span<const float>(floats).subspan(static_cast<size_t>(p) * n, n);
}

MicroBatch FillMicroBatch(std::span<const Row> rows, std::span<const TrainSequence> sequences,
                          BucketShape shape) {
  FB_CHECK(static_cast<int64_t>(rows.size()) <= shape.rows, "too many rows for the shape");
  MicroBatch batch{.shape = shape};
  const auto n = static_cast<size_t>(shape.tokens());
  batch.ints.assign(kIntPlanes * n, 0);
  batch.floats.assign(kFloatPlanes * n, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    int32_t segment = 0;
    for (const Placement& placement : rows[r]) {
      const TrainSequence& sequence = sequences[static_cast<size_t>(placement.sequence)];
      const auto begin = static_cast<size_t>(placement.begin);
      FB_CHECK(static_cast<int64_t>(begin + sequence.tokens.size()) <= shape.length,
               "a sequence leaves its row");
      FillSequence(sequence, ++segment, r * static_cast<size_t>(shape.length) + begin, &batch);
    }
  }
  return batch;
}

int64_t TrainableTokens(std::span<const uint8_t> loss_mask) {
  if (loss_mask.empty()) return 0;
  return std::ranges::count_if(loss_mask.subspan(1), [](uint8_t m) { return m != 0; });
}

}  // namespace forebay::learner
