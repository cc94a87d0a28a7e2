// Fields of a server's answer; one that is missing or wrong is kDataLoss.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::rollout::external {

using Json = nlohmann::ordered_json;

// One JSON object, nested at most 64 deep. kDataLoss with the beginning of what came instead.
Result<Json> ParseAnswer(std::string_view body);
// The message of an error answer in the forms that servers have, at most a few hundred bytes.
std::string ErrorMessage(std::string_view body);

// The field of an object; a null for one that is missing. `value` may be anything.
const Json& Field(const Json& value, const char* name);
// "": not a string.
std::string Text(const Json& value);
// An integer in [0, 2^31).
Result<int32_t> TokenOf(const Json& value);
// A finite number.
Result<float> LogprobOf(const Json& value);
Result<std::vector<int32_t>> TokensOf(const Json& value, const char* what);

}  // namespace forebay::rollout::external
