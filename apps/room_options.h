// The configuration as the options of each room. Pure.
#pragma once

#include <string>
#include <string_view>

#include "forebay/buffer/buffer.h"
#include "forebay/control/config.h"
#include "forebay/control/coordinator.h"
#include "forebay/learner/learner.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/xla/sharding.h"

namespace forebay::apps {

// buffer.max_staleness, or 0 for the synchronous loop.
int64_t MaxStaleness(const control::Config& config);

xla::MeshSizes MakeMeshSizes(const control::Config& config);
// `checkpoint_folder`: "" for a learner that keeps nothing.
learner::LearnerOptions MakeLearnerOptions(const control::Config& config,
                                           const std::string& checkpoint_folder);
rollout::XlaEngineOptions MakeEngineOptions(const control::Config& config);
// "memory", "os" or "sync", as options were checked to be.
buffer::Durability DurabilityOf(std::string_view name);
buffer::BufferOptions MakeBufferOptions(const control::Config& config, const std::string& folder);
control::CoordinatorOptions MakeCoordinatorOptions(const control::Config& config);

}  // namespace forebay::apps
