// LoRA adapters on their way to servers that load them (docs/external_engines.md).
#pragma once

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/train_step.h"
#include "forebay/rollout/http_engine.h"

namespace forebay::apps {

// Whether the run trains adapters and its servers may load them alone.
bool PublishesAdapters(const control::Config& config);

// Writes these adapters, as they are now.
rollout::AdapterWriter MakeAdapterWriter(const control::Config& config,
                                         const learner::TrainState& train);

// What an engine over servers begins with; empty unless PublishesAdapters.
Result<rollout::FirstAdapter> MakeFirstAdapter(const control::Config& config,
                                               const learner::Learner& learner);

}  // namespace forebay::apps
