// What HTTP clients and servers exchange: headers, URLs, requests and responses. Values; no
// sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"

namespace forebay {

// Header fields in the order they were sent. Names compare without case.
class HttpHeaders {
 public:
  HttpHeaders() = default;
  HttpHeaders(std::initializer_list<std::pair<std::string, std::string>> fields) {
    for (const auto& [name, value] : fields) Add(name, value);
  }
  void Add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  // Replaces every field of that name.
  void Set(std::string_view name, std::string value);
  // The first field of that name.
  std::optional<std::string_view> Get(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct HttpUrl {
  bool tls = false;
  std::string unix_path;  // a Unix socket instead of host and port
  std::string host;       // a name or an address, without brackets
  uint16_t port = 0;
  std::string target = "/";  // path and query

  // Where it connects to, as text: the key of a connection pool and the beginning of an error.
  std::string Origin() const;
};
// "http://host:port/path?query", "https://...", or "unix:/path/of.sock:/target". kInvalidArgument,
// also for user names and spaces in it.
Result<HttpUrl> ParseUrl(std::string_view text);

struct HttpRequest {
  std::string method = "GET";
  // For the client a whole URL (ParseUrl); a server sees the target ("/v1/models?x=1") in it.
  std::string url;
  HttpHeaders headers;  // Host, Content-Length and Connection are the client's own
  std::string body;

  // Of a server's request: what stands before and after the '?'.
  std::string_view path() const;
  std::string_view query() const;
  // The token of "Authorization: Bearer TOKEN"; "" if there is none.
  std::string_view bearer() const;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string body;
};

// "Not Found" for 404; "" for a code we do not know.
std::string_view HttpReason(int status);

// Equal, in a time that does not tell where they differ (for tokens).
bool SecretsEqual(std::string_view a, std::string_view b);

}  // namespace forebay
