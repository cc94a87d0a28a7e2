// FieldReader: typed fields of a JSON object that a client has sent, with the error that it is
// told.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/rollout/serving/api_error.h"

namespace forebay::rollout::serving {

// Each getter gives nullopt when the field is missing, null or wrong; the first wrong one is the
// error. Numbers must be finite and in their range.
class FieldReader {
 public:
  // `where` stands before the names of fields in errors: "sampling_params.".
  explicit FieldReader(const nlohmann::ordered_json& object, std::string where = "")
      : object_(object), where_(std::move(where)) {}

  std::optional<bool> Bool(const char* name);
  std::optional<int64_t> Int(const char* name, int64_t min, int64_t max);
  std::optional<double> Number(const char* name, double min, double max);
  std::optional<std::string> String(const char* name, size_t bytes_max);
  // Token ids: integers from 0.
  std::optional<std::vector<int32_t>> Ids(const char* name, size_t count_max);
  // A field that must be missing or ask for nothing: null, false, "", [] or {}.
  void Unsupported(const char* name, std::string_view why);
  // The value, if the field is there and not null.
  const nlohmann::ordered_json* Get(const char* name) const;

  void Fail(const char* name, std::string message);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const nlohmann::ordered_json& object_;
  const std::string where_;
  std::optional<ApiError> error_;
};

// A JSON value as a client would write it, at most a few words of it.
std::string Excerpt(const nlohmann::ordered_json& value);

}  // namespace forebay::rollout::serving
