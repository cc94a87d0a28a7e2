#include "forebay/env/openenv/messages.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/json_depth.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/text.h"
#include "forebay/env/environment.h"
#include "forebay/env/json.h"
#include "forebay/env/tools/text.h"

namespace forebay::env::openenv {
namespace {

constexpr size_t kShownBytes = 300;
constexpr size_t kErrorBytesMax = 4000;
constexpr uint64_t kSeedEnd = uint64_t{1} << 31;  // many environments take no larger ones

void Replace(Json* json, const Json& values) {
  if (json->is_string()) {
    if (const auto it = values.find(json->get_ref<const std::string&>()); it != values.end()) {
      *json = *it;
    }
  } else if (json->is_structured()) {
    for (Json& element : *json) Replace(&element, values);
  }
}

Status NotOpenEnv(std::string_view why, std::string_view text) {
  return DataLoss(
      fmt::format("the OpenEnv server sent {}: {}", why, PrintableText(text, kShownBytes)));
}

std::string Observation(const Json& observation, const std::string& field) {
  const auto shown = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : Dump(value);
  };
  if (!field.empty()) return shown(*Find(observation, field.c_str()));
  const Json* only = nullptr;
  for (const auto& [key, value] : observation.items()) {
    if (value.is_null()) continue;
    if (only != nullptr) return Dump(observation);
    only = &value;
  }
  return only == nullptr ? "" : shown(*only);
}

Result<Answer> ParseError(const Json& data) {
  const Json* code = Find(data, "code");
  const Json* message = Find(data, "message");
  const std::string name = code != nullptr && code->is_string() ? code->get<std::string>() : "";
  std::string text = message != nullptr && message->is_string() ? message->get<std::string>() : "";
  Answer answer;
  if (name == "CAPACITY_REACHED") {
    answer.full = true;
    return answer;
  }
  if (name == "VALIDATION_ERROR") {
    if (const Json* errors = Find(data, "errors")) text += ": " + Dump(*errors);
    answer.invalid = PrintableText(text, kErrorBytesMax);
    return answer;
  }
  return Internal(fmt::format("the OpenEnv environment failed: {} ({})",
                              PrintableText(text, kErrorBytesMax), name));
}

// Without the fence that models like to put around JSON.
std::string_view Unfenced(std::string_view text) {
  text = Trim(text);
  if (text.starts_with("```") && text.ends_with("```") && text.size() > 6) {
    const size_t newline = text.find('\n');
    if (newline != std::string_view::npos && newline + 3 < text.size()) {
      text = Trim(text.substr(newline + 1, text.size() - newline - 4));
    }
  }
  return text;
}

}  // namespace

Result<Template> Template::Parse(std::string_view option, const std::string& text) {
  Template result;
  if (text.empty()) return result;
  result.json_ = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!result.json_.is_object()) {
    return InvalidArgument(fmt::format("'{}' of an OpenEnv server must be a JSON object", option));
  }
  return result;
}

Json Template::Fill(const Json& values) const {
  Json filled = json_.is_null() ? Json::object() : json_;
  Replace(&filled, values);
  return filled;
}

Json ResetValues(const ResetRequest& request) {
  const uint64_t split = request.split == "train" ? 0 : 1;
  const uint64_t task_seed = DeriveSeed(static_cast<uint64_t>(request.task_id), split);
  return {{"$seed", task_seed % kSeedEnd},
          {"$episode_seed", request.seed % kSeedEnd},
          {"$task", request.task_id},
          {"$split", request.split},
          {"$episode", fmt::format("{}-{}-{:x}", request.split, request.task_id, request.seed)}};
}

std::string ResetText(const Template& reset, const ResetRequest& request) {
  return Dump({{"type", "reset"}, {"data", reset.Fill(ResetValues(request))}});
}

Action ActionText(const Template& action, std::string_view written) {
  Json data;
  if (!action.empty()) {
    data = action.Fill({{"$action", written}});
  } else {
    const std::string_view text = Unfenced(written);
    if (!TooDeep(text)) data = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!data.is_object()) return {.error = "an action must be one JSON object and nothing else"};
  }
  return {.text = Dump({{"type", "step"}, {"data", data}})};
}

Result<Answer> ParseAnswer(std::string_view text, const std::string& field) {
  if (TooDeep(text)) return NotOpenEnv("JSON that is nested too deep", text);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Json* type = Find(json, "type");
  const Json* data = Find(json, "data");
  if (type == nullptr || data == nullptr || !data->is_object()) {
    return NotOpenEnv("something without type and data", text);
  }
  if (*type == "error") return ParseError(*data);
  const Json* observation = Find(*data, "observation");
  if (*type != "observation" || observation == nullptr || !observation->is_object()) {
    return NotOpenEnv("something that is no observation", text);
  }
  if (!field.empty() && Find(*observation, field.c_str()) == nullptr) {
    return NotOpenEnv(fmt::format("an observation without '{}'", field), Dump(*observation));
  }
  Answer answer{.observation = Observation(*observation, field)};
  if (const Json* reward = Find(*data, "reward"); reward != nullptr && !reward->is_null()) {
    if (!reward->is_number() && !reward->is_boolean()) {
      return NotOpenEnv("a reward that is no number", Dump(*reward));
    }
    answer.reward =
        reward->is_boolean() ? static_cast<double>(reward->get<bool>()) : reward->get<double>();
  }
  if (const Json* done = Find(*data, "done"); done != nullptr && done->is_boolean()) {
    answer.done = done->get<bool>();
  }
  return answer;
}

}  // namespace forebay::env::openenv
