// Keys stand in files and environment variables, never in a configuration or on a command line.
#pragma once

#include <string>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::apps {

// What the file holds, without the end of its line. kInvalidArgument for an empty one.
Result<std::string> TokenFromFile(const std::string& path);

// What the environment variable holds that the option `key` of the configuration names; "" if it
// names none. kInvalidArgument if it is not set, or empty.
Result<std::string> TokenFromVariable(std::string_view key, const std::string& variable);

}  // namespace forebay::apps
