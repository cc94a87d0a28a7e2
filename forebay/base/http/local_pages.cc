#include "forebay/base/http/local_pages.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/system/error_code.hpp>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/base/status.h"

namespace forebay::http {
namespace {

constexpr size_t kQuotedMax = 100;  // of what a client sent, in an error

std::string Lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

bool IsAllowed(const std::string& host, const std::vector<std::string>& allowed) {
  const std::string name = Lower(host);
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  boost::system::error_code no_address;
  const auto address = boost::asio::ip::make_address(name, no_address);
  if (!no_address && address.is_loopback()) return true;
  return std::ranges::any_of(allowed, [&](const std::string& one) { return Lower(one) == name; });
}

}  // namespace

std::string ForeignPage(const HttpHeaders& headers, const std::vector<std::string>& allowed) {
  // Every one: which of two another program takes is not known.
  for (const auto& [name, value] : headers.fields()) {
    const std::string lower = Lower(name);
    if (lower == "origin") {
      const Result<HttpUrl> url = ParseUrl(value);
      if (!url.ok() || !IsAllowed(url->host, allowed)) {
        return fmt::format("pages of other origins may not use this server, such as those of '{}'",
                           value.substr(0, kQuotedMax));
      }
    } else if (lower == "host") {
      const Result<HttpUrl> url = ParseUrl("http://" + value);
      if (!url.ok() || url->target != "/" || !IsAllowed(url->host, allowed)) {
        return fmt::format(
            "this server answers to localhost and to the addresses it listens on, not to '{}', "
            "which is what the Host header says",
            value.substr(0, kQuotedMax));
      }
    }
  }
  return {};
}

}  // namespace forebay::http
