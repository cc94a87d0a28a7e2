#include "apps/adapter_setup.h"

#include <string>

#include "apps/room_options.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/train_step.h"
#include "forebay/rollout/http_engine.h"

namespace forebay::apps {

bool PublishesAdapters(const control::Config& config) {
  const std::string& engine = config.rollout.engine;
  return config.learner.lora_rank > 0 && config.rollout.reload &&
         (engine == "vllm" || engine == "sglang");
}

rollout::AdapterWriter MakeAdapterWriter(const control::Config& config,
                                         const learner::TrainState& train) {
  // The tensors share their memory with `train`.
  return [options = MakeLearnerOptions(config, "").lora, adapters = train.adapters,
          base = config.model.path](const std::string& folder) {
    return learner::ExportPeft(folder, options, adapters, base);
  };
}

Result<rollout::FirstAdapter> MakeFirstAdapter(const control::Config& config,
                                               const learner::Learner& learner) {
  if (!PublishesAdapters(config)) return rollout::FirstAdapter{};
  FB_ASSIGN_OR_RETURN(const learner::LearnerState state, learner.State());
  return rollout::FirstAdapter{.write = MakeAdapterWriter(config, state.train),
                               .base = state.train.params};
}

}  // namespace forebay::apps
