#include "apps/run_record.h"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/learner/fingerprint.h"
#include "forebay/xla/client.h"

namespace forebay::apps {
namespace {

using nlohmann::json;

// Calls `each` with every complete line that is a JSON object.
void ForEachObject(const std::string& path, const std::function<void(const json&)>& each) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;  // torn, or damaged
    try {
      each(object);
    } catch (const std::exception&) {
      continue;  // another kind of line
    }
  }
}

// Throws, as json does, for anything else: a number out of range would not.
int64_t Integer(const json& value) {
  if (!value.is_number_integer()) throw std::invalid_argument("not a whole number");
  return value.get<int64_t>();
}

StepRecord ParseStep(const json& line) {
  StepRecord record{.step = Integer(line.at("step")), .config_id = line.value("config", "")};
  if (line.contains("fingerprint")) {
    record.fingerprint = line["fingerprint"].get<std::map<std::string, std::string>>();
  }
  return record;
}

}  // namespace

std::string PluginName(const xla::Client& client) {
  return client.platform() + " " + client.platform_version();
}

StartRecord MakeStart(const control::Config& config, int64_t after_step,
                      const std::string& plugin) {
  std::string text = control::FormatConfig(config);
  std::string id = learner::BytesDigest(text);
  return {.after_step = after_step,
          .config_id = std::move(id),
          .config = std::move(text),
          .plugin = plugin};
}

std::string StartLine(const StartRecord& start) {
  return json{{"after_step", start.after_step},
              {"config_id", start.config_id},
              {"config", start.config},
              {"plugin", start.plugin}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<RunRecord> ReadRunRecord(const std::string& run) {
  std::error_code error;
  if (!std::filesystem::exists(run + "/config.toml", error)) {
    return NotFound("'" + run + "' holds no run (it has no config.toml)");
  }
  RunRecord record{.starts_file = run + "/starts.jsonl"};
  ForEachObject(record.starts_file, [&](const json& line) {
    StartRecord start{.after_step = Integer(line.at("after_step")),
                      .config_id = line.at("config_id").get<std::string>(),
                      .config = line.at("config").get<std::string>(),
                      .plugin = line.at("plugin").get<std::string>()};
    std::string id = start.config_id;
    record.starts.insert_or_assign(std::move(id), std::move(start));
  });
  ForEachObject(run + "/metrics.jsonl", [&](const json& line) {
    StepRecord step = ParseStep(line);
    const int64_t number = step.step;
    record.steps.erase(record.steps.lower_bound(number), record.steps.end());
    record.steps.emplace(number, std::move(step));
  });
  if (record.steps.empty()) return NotFound("'" + run + "' has no optimizer step yet");
  return record;
}

Result<StepConfig> ConfigOfStep(const RunRecord& record, int64_t step,
                                const std::vector<std::string>& sets) {
  const auto of_step = record.steps.find(step);
  const auto start = of_step == record.steps.end() ? record.starts.end()
                                                   : record.starts.find(of_step->second.config_id);
  if (start == record.starts.end()) {
    return NotFound(fmt::format(
        "'{}' does not say under which configuration step {} was taken: it was recorded by an "
        "older program, or the file is damaged",
        record.starts_file, step));
  }
  if (learner::BytesDigest(start->second.config) != start->second.config_id) {
    return DataLoss(fmt::format(
        "the configuration of step {} in '{}' is damaged: its text does not have its digest {}",
        step, record.starts_file, start->second.config_id));
  }
  FB_ASSIGN_OR_RETURN(control::Config config,
                      control::ParseConfig(start->second.config, record.starts_file, "", sets));
  return StepConfig{.config = std::move(config), .start = start->second};
}

}  // namespace forebay::apps
