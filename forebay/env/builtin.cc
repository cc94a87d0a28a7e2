#include "forebay/env/builtin.h"

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/builtin/dataset.h"
#include "forebay/env/builtin/slow.h"
#include "forebay/env/environment.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;

// Reads an object into named numbers; every key must have been asked for.
Status Read(std::string_view environment, const Json& options,
            const std::map<std::string, int64_t*>& integers,
            const std::map<std::string, double*>& numbers) {
  if (options.is_null()) return OkStatus();
  if (!options.is_object()) {
    return InvalidArgument(
        fmt::format("the options of environment '{}' must be a table", environment));
  }
  for (const auto& [key, value] : options.items()) {
    if (const auto it = integers.find(key); it != integers.end()) {
      if (!value.is_number_integer()) {
        return InvalidArgument(
            fmt::format("{} of environment '{}' must be a whole number", key, environment));
      }
      *it->second = value.get<int64_t>();
    } else if (const auto at = numbers.find(key); at != numbers.end()) {
      if (!value.is_number()) {
        return InvalidArgument(
            fmt::format("{} of environment '{}' must be a number", key, environment));
      }
      *at->second = value.get<double>();
    } else {
      std::string known;
      for (const auto& [name, _] : integers) known += name + " ";
      for (const auto& [name, _] : numbers) known += name + " ";
      return InvalidArgument(
          fmt::format("environment '{}' has no option '{}'; it has: {}", environment, key, known));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<EnvironmentPool>> MakeBuiltin(std::string_view name, const Json& options,
                                                     Loop& loop, const std::string& folder) {
  if (name == "dataset") return MakeDatasetPool(options, folder, loop);
  if (name != "slow") {
    return NotFound(
        fmt::format("there is no built-in environment '{}'; there are: slow, dataset", name));
  }
  SlowOptions slow;
  FB_RETURN_IF_ERROR(Read(name, options,
                          {{"turns_min", &slow.turns_min},
                           {"turns_max", &slow.turns_max},
                           {"letters", &slow.letters},
                           {"episodes_max", &slow.episodes_max}},
                          {{"latency_p50_s", &slow.latency_p50_s},
                           {"latency_p99_s", &slow.latency_p99_s},
                           {"reset_p50_s", &slow.reset_p50_s}}));
  return MakeSlowPool(slow, loop);
}

}  // namespace forebay::env
