#include "forebay/env/tools/call_json.h"

#include <fmt/core.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/json_depth.h"
#include "forebay/base/json_scan.h"
#include "forebay/env/json.h"
#include "forebay/env/tool_calls.h"

namespace forebay::env {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kValuesMax = 10'000;  // an ordered object takes time with the square of its keys

// The end of the value that begins at `begin`. npos: it is not complete, or beyond the limits.
size_t ValueEnd(std::string_view text, size_t begin) {
  int depth = 0;
  int commas = 0;
  std::optional<size_t> end;
  const bool in_string = OutsideJsonStrings(text, begin, [&](char c, size_t i) {
    if (c == '{' || c == '[') {
      if (++depth > kJsonDepthMax) end = std::string_view::npos;
    } else if (c == ',') {
      if (++commas >= kValuesMax) end = std::string_view::npos;
    } else if (c == '}' || c == ']') {
      if (--depth <= 0) end = i + 1;
    }
    return !end;
  });
  if (end) return *end;
  return depth == 0 && !in_string ? text.size() : std::string_view::npos;
}

// A sentence without the library's own numbering and byte positions of a text that the model
// cannot count anyway.
std::string SyntaxError(std::string_view text) {
  std::string reason = "it is not JSON";
  try {
    [[maybe_unused]] const Json ignored = Json::parse(text);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();
    const size_t colon = what.find(": ", what.find("parse error"));
    if (colon != std::string_view::npos) {
      reason += fmt::format(" ({})", what.substr(colon + 2, 160));
    }
  }
  return reason;
}

// Adds the call, or says why it is none.
std::string AddCall(const Json& value, bool arguments_needed, std::vector<ToolCall>* calls) {
  if (!value.is_object()) return "a call is a JSON object with \"name\" and \"arguments\"";
  const Json* call = &value;
  if (const Json* function = Find(value, "function"); function && function->is_object()) {
    call = function;
  }
  const Json* name = Find(*call, "name");
  if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty()) {
    return "\"name\" is missing: it must be the name of a tool";
  }
  if (name->get_ref<const std::string&>().size() > kToolNameBytesMax) {
    return "\"name\" is too long to be the name of a tool";
  }
  const Json* arguments = Find(*call, "arguments");
  if (arguments == nullptr) arguments = Find(*call, "parameters");
  Json inner = Json::object();
  if (arguments == nullptr) {
    if (arguments_needed) return "\"arguments\" is missing: it must be a JSON object";
  } else if (arguments->is_string()) {
    const auto& text = arguments->get_ref<const std::string&>();
    if (ValueEnd(text, 0) == std::string_view::npos) {
      return "the text of \"arguments\" is not a JSON object";
    }
    inner = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!inner.is_object()) return "the text of \"arguments\" is not a JSON object";
  } else if (arguments->is_object()) {
    inner = *arguments;
  } else if (!arguments->is_null()) {
    return "\"arguments\" must be a JSON object";
  }
  calls->push_back({.name = name->get<std::string>(), .arguments = inner.dump()});
  return "";
}

bool IsSeparator(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == ';' || c == ',';
}

}  // namespace

ParsedCalls ParseCallJson(std::string_view text, bool arguments_needed) {
  ParsedCalls parsed;
  const auto fail = [&parsed](std::string reason) {
    parsed.calls.clear();
    parsed.reason = std::move(reason);
    return parsed;
  };
  size_t at = 0;
  while (true) {
    while (at < text.size() && IsSeparator(text[at])) ++at;
    if (at == text.size()) break;
    size_t end = ValueEnd(text, at);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view one = text.substr(at, end - at);
    at = end;
    Json value;
    if (ValueEnd(one, 0) != std::string_view::npos) {
      value = Json::parse(one, nullptr, /*allow_exceptions=*/false);
    } else {
      return fail("its JSON is not complete, or too large");
    }
    if (value.is_discarded()) return fail(SyntaxError(one));
    std::string reason;
    if (value.is_array()) {
      for (const Json& element : value) {
        reason = AddCall(element, arguments_needed, &parsed.calls);
        if (!reason.empty()) return fail(std::move(reason));
      }
    } else {
      reason = AddCall(value, arguments_needed, &parsed.calls);
      if (!reason.empty()) return fail(std::move(reason));
    }
  }
  if (parsed.calls.empty()) return fail("there is no call in it");
  return parsed;
}

bool LooksLikeCall(std::string_view text) {
  const auto has = [text](std::string_view key) {
    return text.find(key) != std::string_view::npos;
  };
  return has("\"name\"") && (has("\"arguments\"") || has("\"parameters\""));
}

}  // namespace forebay::env
