// What every reader and writer of JSON in this room needs. Private to it: the library's header is
// heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace forebay::env {

// The member of an object; null if there is none, or `object` is something else.
template <typename Json>
const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

// As text, in one line unless indented. Bytes that are no UTF-8 become U+FFFD: it never throws.
template <typename Json = nlohmann::json>
std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace forebay::env
