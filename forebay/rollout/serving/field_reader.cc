#include "forebay/rollout/serving/field_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace forebay::rollout::serving {

using Json = nlohmann::ordered_json;

std::string Excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

const Json* FieldReader::Get(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::Fail(const char* name, std::string message) {
  if (error_) return;
  error_ = ApiError{.message = std::move(message), .param = where_ + name};
}

std::optional<bool> FieldReader::Bool(const char* name) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, fmt::format("'{}{}' must be true or false, not {}", where_, name, Excerpt(*value)));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Int(const char* name, int64_t min, int64_t max) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_integer() &&
      !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
    const auto number = value->get<int64_t>();
    if (number >= min && number <= max) return number;
  }
  Fail(name, fmt::format("'{}{}' must be an integer from {} to {}, not {}", where_, name, min, max,
                         Excerpt(*value)));
  return std::nullopt;
}

std::optional<double> FieldReader::Number(const char* name, double min, double max) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (std::isfinite(number) && number >= min && number <= max) return number;
  }
  Fail(name, fmt::format("'{}{}' must be a number from {} to {}, not {}", where_, name, min, max,
                         Excerpt(*value)));
  return std::nullopt;
}

std::optional<std::string> FieldReader::String(const char* name, size_t bytes_max) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string() && value->get_ref<const std::string&>().size() <= bytes_max) {
    return value->get<std::string>();
  }
  Fail(name, fmt::format("'{}{}' must be a string of at most {} bytes, not {}", where_, name,
                         bytes_max, Excerpt(*value)));
  return std::nullopt;
}

std::optional<std::vector<int32_t>> FieldReader::Ids(const char* name, size_t count_max) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const auto is_id = [](const Json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
  };
  if (value->is_array() && value->size() <= count_max && std::ranges::all_of(*value, is_id)) {
    return value->get<std::vector<int32_t>>();
  }
  Fail(name, fmt::format("'{}{}' must be a list of at most {} token ids, not {}", where_, name,
                         count_max, Excerpt(*value)));
  return std::nullopt;
}

void FieldReader::Unsupported(const char* name, std::string_view why) {
  const Json* value = Get(name);
  if (value == nullptr || *value == false || (!value->is_primitive() && value->empty()) ||
      *value == "") {
    return;
  }
  Fail(name, fmt::format("'{}{}' is not supported: {}", where_, name, why));
}

}  // namespace forebay::rollout::serving
