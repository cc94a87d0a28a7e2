// The one table of configuration keys.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "forebay/control/config.h"

namespace forebay::control {

using FieldTarget = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                                 std::vector<int64_t>*>;

struct Field {
  std::string_view key;  // "learner.learning_rate"
  FieldTarget target;
  std::string_view meaning;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string_view> choices = {};  // of a string
  bool is_path = false;
};

// Every key of `config`, in the order they are documented.
std::vector<Field> Fields(Config& config);

// Rules over several keys. kInvalidArgument names the keys and what would be right.
Status CheckCombinations(const Config& config);

// Of CheckCombinations: values of [env] and [rollout] that no type and no range rules out:
// commands, JSON, URLs, lists of sizes.
Status CheckValues(const Config& config);

}  // namespace forebay::control
