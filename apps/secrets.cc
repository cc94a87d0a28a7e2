#include "apps/secrets.h"

#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::apps {

Result<std::string> TokenFromFile(const std::string& path) {
  FB_ASSIGN_OR_RETURN(std::string token, ReadFile(path, 1 << 16));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty()) return InvalidArgument("'" + path + "' holds no token");
  return token;
}

Result<std::string> TokenFromVariable(std::string_view key, const std::string& variable) {
  if (variable.empty()) return std::string();
  const char* value = std::getenv(variable.c_str());
  if (value == nullptr || *value == '\0') {
    return InvalidArgument(fmt::format(
        "{} names the environment variable '{}', which is not set: it must hold the token", key,
        variable));
  }
  return std::string(value);
}

}  // namespace forebay::apps
