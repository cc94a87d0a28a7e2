#include "forebay/learner/manifest.h"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/schedule.h"

namespace forebay::learner {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "forebay-checkpoint-1";

// It becomes part of a file's name.
bool IsDigest(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace

Result<std::string> FormatManifest(const Manifest& manifest) {
  const CheckpointData& data = manifest.data;
  json app = json::parse(data.app_state, nullptr, /*allow_exceptions=*/false);
  if (app.is_discarded()) return InvalidArgument("a checkpoint's app_state must be JSON");
  json j = {
      {"format", kFormat},
      {"step", data.state.step},
      {"updates", data.state.train.updates},
      {"optimizer_format", data.state.train.optimizer_format},
      {"policy_version", data.state.policy_version},
      {"committed_batch", data.state.committed_batch},
      {"digests", {{"model", manifest.model_digest}, {"optimizer", manifest.optimizer_digest}}},
      {"schedule",
       {{"kind", ScheduleKindName(data.schedule.kind)},
        {"learning_rate", data.schedule.learning_rate},
        {"warmup_steps", data.schedule.warmup_steps},
        {"total_steps", data.schedule.total_steps},
        {"decay_steps", data.schedule.decay_steps},
        {"end_fraction", data.schedule.end_fraction},
        {"next_learning_rate", LearningRate(data.schedule, data.state.step)}}},
      {"rng", {{"seed", data.seed}}},
      {"config_hash", data.config_hash},
      {"app", std::move(app)},
  };
  if (!manifest.adapters_digest.empty()) {
    j["digests"]["adapters"] = manifest.adapters_digest;
    j["lora"] = {{"rank", data.lora.rank},
                 {"alpha", data.lora.alpha},
                 {"rslora", data.lora.rslora},
                 {"targets", data.lora.targets}};
    j["shared_base"] = manifest.shared_base;
  }
  return j.dump(2) + "\n";
}

Result<Manifest> ParseManifest(std::string_view text) {
  Manifest manifest;
  CheckpointData& data = manifest.data;
  try {
    const json j = json::parse(text);
    if (j.at("format").get<std::string>() != kFormat) {
      return DataLoss(fmt::format("manifest.json has format \"{}\", this program reads \"{}\"",
                                  j.at("format").get<std::string>(), kFormat));
    }
    data.state.step = j.at("step").get<int64_t>();
    data.state.train.updates = j.at("updates").get<int64_t>();
    int64_t& optimizer_format = data.state.train.optimizer_format;
    optimizer_format = j.value("optimizer_format", int64_t{1});
    if (optimizer_format < 1 || optimizer_format > kOptimizerStateFormat) {
      return DataLoss(fmt::format(
          "manifest.json has optimizer_format {}, this program reads 1 to {}: a newer one wrote it",
          optimizer_format, kOptimizerStateFormat));
    }
    data.state.policy_version = j.at("policy_version").get<int64_t>();
    data.state.committed_batch = j.at("committed_batch").get<int64_t>();
    manifest.model_digest = j.at("digests").at("model").get<std::string>();
    manifest.optimizer_digest = j.at("digests").at("optimizer").get<std::string>();
    const json& schedule = j.at("schedule");
    const auto kind = ParseScheduleKind(schedule.at("kind").get<std::string>());
    if (!kind) return DataLoss("manifest.json names an unknown learning-rate schedule");
    data.schedule = {.kind = *kind,
                     .learning_rate = schedule.at("learning_rate").get<double>(),
                     .warmup_steps = schedule.at("warmup_steps").get<int64_t>(),
                     .total_steps = schedule.at("total_steps").get<int64_t>(),
                     .decay_steps = schedule.value("decay_steps", int64_t{0}),
                     .end_fraction = schedule.value("end_fraction", 0.0)};
    data.seed = j.at("rng").at("seed").get<int64_t>();
    data.config_hash = j.at("config_hash").get<std::string>();
    data.app_state = j.at("app").dump();
    if (j.contains("lora")) {
      manifest.adapters_digest = j.at("digests").at("adapters").get<std::string>();
      manifest.shared_base = j.value("shared_base", false);
      const json& lora = j.at("lora");
      data.lora = {.rank = lora.at("rank").get<int64_t>(),
                   .alpha = lora.at("alpha").get<double>(),
                   .rslora = lora.at("rslora").get<bool>(),
                   .targets = lora.at("targets").get<std::vector<std::string>>()};
      if (data.lora.rank < 1 || !ValidateLora(data.lora).ok()) {
        return DataLoss("manifest.json holds LoRA options that no learner takes");
      }
    }
  } catch (const std::exception& e) {
    return DataLoss(fmt::format("manifest.json is damaged: {}", e.what()));
  }
  if (manifest.shared_base && !IsDigest(manifest.model_digest)) {
    return DataLoss("manifest.json holds no digest of the model, but something else");
  }
  if (data.state.step < 0 || data.state.train.updates < 0 || data.state.policy_version < 0 ||
      data.state.committed_batch < 0) {
    return DataLoss("manifest.json holds a negative counter");
  }
  return manifest;
}

}  // namespace forebay::learner
