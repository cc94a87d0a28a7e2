// ServersGap: whether servers that say that they took new weights sample with them.
#pragma once

#include <optional>
#include <string>

#include "forebay/control/config.h"
#include "forebay/learner/step_metrics.h"

namespace forebay::apps {

// What was sampled with the weights that a step starts from, the step computes again with the same
// ones: the largest difference of their log-probabilities is as small as it was before any weights
// were reloaded, or they were not taken (a tied output head that is packed once, names that a
// server skips). Steps in order.
class ServersGap {
 public:
  explicit ServersGap(const control::Config& config)
      : reloads_(!config.rollout.servers.empty() && config.rollout.reload) {}

  // A sentence, once.
  std::optional<std::string> Look(const learner::StepMetrics& metrics);

 private:
  const bool reloads_;
  std::optional<double> first_;  // of the weights that the servers began with
  bool told_ = false;
};

}  // namespace forebay::apps
