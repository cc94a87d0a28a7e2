// MakeRunEngine: the engine that a run's configuration asks for.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "apps/model_setup.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::apps {

// The built-in engine, or the servers of rollout.servers. Blocks as MakeXlaEngine and
// MakeHttpEngine do, with their errors. `client` is for the built-in one and must outlive it;
// `run_folder` holds weights on their way to servers unless rollout.weights_folder is set; `log`
// is told what happens to servers.
Result<std::unique_ptr<rollout::Engine>> MakeRunEngine(
    const control::Config& config, xla::Client& client, const LoadedModel& model,
    const weights::Snapshot& initial, const rollout::FirstAdapter& adapter,
    const std::string& run_folder, std::function<void(const std::string&)> log);

// kInvalidArgument: the variable with the servers' key is not set.
Result<rollout::HttpEngineOptions> MakeHttpEngineOptions(const control::Config& config,
                                                         const LoadedModel& model,
                                                         const std::string& run_folder);

}  // namespace forebay::apps
