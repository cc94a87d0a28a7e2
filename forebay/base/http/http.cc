#include "forebay/base/http.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "forebay/base/status.h"

namespace forebay {
namespace {

bool SameName(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// Nothing that could end a request line or a header.
bool Clean(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char c) { return c <= ' ' || c == 0x7f; });
}

}  // namespace

void HttpHeaders::Set(std::string_view name, std::string value) {
  std::erase_if(fields_, [&](const auto& field) { return SameName(field.first, name); });
  fields_.emplace_back(std::string(name), std::move(value));
}

std::optional<std::string_view> HttpHeaders::Get(std::string_view name) const {
  for (const auto& [key, value] : fields_) {
    if (SameName(key, name)) return value;
  }
  return std::nullopt;
}

std::string HttpUrl::Origin() const {
  if (!unix_path.empty()) return "unix:" + unix_path;
  const bool brackets = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", tls ? "https" : "http", brackets ? "[" : "", host,
                     brackets ? "]" : "", port);
}

Result<HttpUrl> ParseUrl(std::string_view text) {
  const Status wrong = InvalidArgument(
      fmt::format("'{}' is no URL: write http://host:port/path, https://host/path or "
                  "unix:/path/of.sock:/path",
                  text.substr(0, 200)));
  if (!Clean(text)) return wrong;
  HttpUrl url;
  if (text.starts_with("unix:")) {
    text.remove_prefix(5);
    const size_t colon = text.find(':');
    url.unix_path = text.substr(0, colon);
    if (colon != std::string_view::npos) url.target = text.substr(colon + 1);
    if (!url.unix_path.starts_with('/') || !url.target.starts_with('/')) return wrong;
    return url;
  }
  if (text.starts_with("https://")) {
    url.tls = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return wrong;
  }
  url.port = url.tls ? 443 : 80;
  const size_t end = std::min(text.find_first_of("/?#"), text.size());
  std::string_view authority = text.substr(0, end);
  std::string_view target = text.substr(end);
  target = target.substr(0, target.find('#'));
  if (!target.empty()) url.target = target.front() == '/' ? target : fmt::format("/{}", target);
  if (authority.find('@') != std::string_view::npos) return wrong;
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return wrong;
    url.host = authority.substr(1, close - 1);
    port = authority.substr(close + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (url.host.empty()) return wrong;
  if (!port.empty()) {
    if (port.front() != ':') return wrong;
    port.remove_prefix(1);
    const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (error != std::errc() || stop != port.data() + port.size() || url.port == 0) return wrong;
  }
  return url;
}

std::string_view HttpRequest::path() const {
  const std::string_view target = url;
  return target.substr(0, target.find('?'));
}

std::string_view HttpRequest::query() const {
  const std::string_view target = url;
  const size_t mark = target.find('?');
  return mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
}

std::string_view HttpRequest::bearer() const {
  const std::string_view value = headers.Get("authorization").value_or("");
  constexpr std::string_view kScheme = "bearer ";
  if (value.size() < kScheme.size() || !SameName(value.substr(0, kScheme.size()), kScheme)) {
    return {};
  }
  return value.substr(kScheme.size());
}

std::string_view HttpReason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 101:
      return "Switching Protocols";
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "";
  }
}

bool SecretsEqual(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^
                              static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]));
  }
  return difference == 0;
}

}  // namespace forebay
