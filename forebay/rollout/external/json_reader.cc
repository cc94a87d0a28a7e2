#include "forebay/rollout/external/json_reader.h"

#include <fmt/core.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/serving/bounded_json.h"

namespace forebay::rollout::external {
namespace {

constexpr size_t kExcerptBytes = 200;
constexpr size_t kMessageBytes = 400;

std::string Excerpt(std::string_view text, size_t bytes) {
  std::string out(text.substr(0, bytes));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.size() > bytes ? out + "..." : out;
}

}  // namespace

Result<Json> ParseAnswer(std::string_view body) {
  std::optional<Json> value = serving::ParseBounded(body);
  if (!value || !value->is_object()) {
    return DataLoss("the answer is no JSON object: '" + Excerpt(body, kExcerptBytes) + "'");
  }
  return std::move(*value);
}

std::string ErrorMessage(std::string_view body) {
  const std::optional<Json> value = serving::ParseBounded(body);
  if (value) {
    const Json& error = Field(*value, "error");
    for (const Json* found :
         {&Field(error, "message"), &error, &Field(*value, "message"), &Field(*value, "detail")}) {
      if (found->is_string()) return Excerpt(Text(*found), kMessageBytes);
    }
  }
  return Excerpt(body, kMessageBytes);
}

const Json& Field(const Json& value, const char* name) {
  static const Json kNone;
  if (!value.is_object()) return kNone;
  const auto it = value.find(name);
  return it == value.end() ? kNone : *it;
}

std::string Text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

Result<int32_t> TokenOf(const Json& value) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return DataLoss("a token id is no integer from 0: " + Excerpt(value.dump(), kExcerptBytes));
  }
  return value.get<int32_t>();
}

Result<float> LogprobOf(const Json& value) {
  if (!value.is_number()) {
    return DataLoss("a log-probability is missing or no number: " +
                    Excerpt(value.dump(), kExcerptBytes));
  }
  const auto number = value.get<double>();
  if (!std::isfinite(number)) return DataLoss("a log-probability is not finite");
  return static_cast<float>(number);
}

Result<std::vector<int32_t>> TokensOf(const Json& value, const char* what) {
  if (!value.is_array()) {
    return DataLoss(fmt::format("the answer has no list '{}' of token ids", what));
  }
  std::vector<int32_t> out;
  out.reserve(value.size());
  for (const Json& each : value) {
    FB_ASSIGN_OR_RETURN(const int32_t token, TokenOf(each));
    out.push_back(token);
  }
  return out;
}

}  // namespace forebay::rollout::external
