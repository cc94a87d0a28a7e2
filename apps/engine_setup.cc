#include "apps/engine_setup.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "apps/model_setup.h"
#include "apps/room_options.h"
#include "apps/secrets.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::apps {
namespace {

// A run is known by its folder, and folders of different machines may have one path.
std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

}  // namespace

Result<rollout::HttpEngineOptions> MakeHttpEngineOptions(const control::Config& config,
                                                         const LoadedModel& model,
                                                         const std::string& run_folder) {
  using Protocol = rollout::HttpEngineProtocol;
  const control::RolloutSection& r = config.rollout;
  rollout::HttpEngineOptions o;
  o.protocol = r.engine == "forebay"    ? Protocol::kForebay
               : r.engine == "sglang"   ? Protocol::kSglang
               : r.engine == "llamacpp" ? Protocol::kLlamaCpp
                                        : Protocol::kVllm;
  o.servers = r.servers;
  for (std::string& server : o.servers) {
    while (server.ends_with('/')) server.pop_back();
  }
  FB_ASSIGN_OR_RETURN(o.token,
                      TokenFromVariable("rollout.server_token_variable", r.server_token_variable));
  if (!r.server_ca_file.empty()) o.ca_file = config.Resolve(r.server_ca_file);
  o.model = r.server_model;
  o.vocab_size = model.model->config().vocab_size;
  o.context = r.context;
  o.requests_per_server_max = r.server_requests_max;
  o.waiting_max = MakeEngineOptions(config).waiting_max;
  o.reload = r.reload;
  o.weights_folder = r.weights_folder.empty()
                         ? std::filesystem::absolute(run_folder + "/rollout_weights").string()
                         : config.Resolve(r.weights_folder);
  o.files = model.files;
  o.publisher = HostName() + ":" + std::filesystem::absolute(run_folder).string();
  o.versions_ahead_max = MaxStaleness(config);
  return o;
}

Result<std::unique_ptr<rollout::Engine>> MakeRunEngine(
    const control::Config& config, xla::Client& client, const LoadedModel& model,
    const weights::Snapshot& initial, const rollout::FirstAdapter& adapter,
    const std::string& run_folder, std::function<void(const std::string&)> log) {
  if (config.rollout.engine == "builtin") {
    return rollout::MakeXlaEngine(MakeEngineOptions(config), client, model.model, initial);
  }
  if (!config.rollout.reload && initial.policy_version > 0) {
    return FailedPrecondition(
        "rollout.reload = false: the servers keep the weights that the run began with, so a run "
        "that has trained cannot be resumed on them; set rollout.reload, or rollout.engine = "
        "\"builtin\"");
  }
  FB_ASSIGN_OR_RETURN(rollout::HttpEngineOptions options,
                      MakeHttpEngineOptions(config, model, run_folder));
  options.log = std::move(log);
  FB_ASSIGN_OR_RETURN(std::unique_ptr<rollout::HttpEngine> engine,
                      rollout::MakeHttpEngine(options, initial, adapter));
  return std::unique_ptr<rollout::Engine>(std::move(engine));
}

}  // namespace forebay::apps
