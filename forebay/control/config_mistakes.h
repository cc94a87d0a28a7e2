// What is said to someone whose configuration names what there is not, or gives a value that cannot
// be. All pure; all kInvalidArgument. `where` is the file and line, or the --set.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config_schema.h"

namespace forebay::control {

// "; did you mean 'sync'?", or "" when no word is near.
std::string DidYouMean(std::string_view given, std::span<const std::string_view> words);

// `key` is none of the fields: it may be mistyped, in another section's place, or a sampler that
// only `forebay serve` has.
Status UnknownKey(const std::string& where, std::string_view key, const std::vector<Field>& fields);

// The table [name] is no section.
Status UnknownSection(const std::string& where, std::string_view name,
                      const std::vector<Field>& fields);

// `wanted` and `got` with their articles: "a number", "a string (\"abc\")".
Status WrongType(const std::string& where, const Field& field, std::string_view wanted,
                 std::string_view got);

Status NotAChoice(const std::string& where, const Field& field, std::string_view given);

// OK when `value` is within the field's bounds.
Status CheckRange(const std::string& where, const Field& field, double value);

}  // namespace forebay::control
