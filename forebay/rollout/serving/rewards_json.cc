#include "forebay/rollout/serving/rewards_json.h"

#include <cmath>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/rollout/serving/bounded_json.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kComponentsMax = 64;
constexpr size_t kNameBytesMax = 128;
constexpr double kRewardMax = 1e29;  // their sum stays below what a trajectory may have

}  // namespace

std::string ReadRewards(std::string_view json, std::map<std::string, double>* out) {
  std::string wrong =
      "rewards are {\"reward\": number} or {\"rewards\": {\"component\": number}}, at most 64 of "
      "them, numbers below 1e29";
  std::string problem;
  const std::optional<Json> object = ParseBounded(json, &problem);
  if (!object) return "the body " + problem + "; " + wrong;
  if (!object->is_object()) return wrong;
  Json components = object->value("rewards", Json::object());
  if (!components.is_object()) return wrong;
  if (object->contains("reward")) components["reward"] = (*object)["reward"];
  if (components.empty()) return wrong;
  std::map<std::string, double> read = *out;
  for (const auto& [name, value] : components.items()) {
    if (!value.is_number() || !(std::abs(value.get<double>()) < kRewardMax)) return wrong;
    if (name.empty() || name.size() > kNameBytesMax) return wrong;
    read[name] = value.get<double>();
  }
  if (read.size() > kComponentsMax) return wrong;
  *out = std::move(read);
  return {};
}

}  // namespace forebay::rollout::serving
