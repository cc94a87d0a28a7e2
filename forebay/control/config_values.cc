// Values that no type and no range rules out, but that no run can use.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/control/config_schema.h"

namespace forebay::control {
namespace {

Status CheckCommand(std::string_view key, const std::vector<std::string>& command) {
  if (command.empty()) return OkStatus();
  if (command.front().empty()) {
    return InvalidArgument(fmt::format(
        "{} begins with an empty word: the first one names the program, for instance [\"python3\", "
        "\"env.py\"]",
        key));
  }
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i].find('\0') == std::string::npos) continue;
    return InvalidArgument(fmt::format(
        "{}: its word {} holds a zero byte, which no program can be given: remove it", key, i + 1));
  }
  return OkStatus();
}

// A message stops at a zero byte.
std::string Printable(std::string_view text) {
  std::string out(text.substr(0, 200));
  std::ranges::replace_if(out, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return out;
}

Status NoUrl(std::string_view key, std::string_view url, std::string_view right) {
  return InvalidArgument(
      fmt::format("{} has \"{}\", which is no URL: give one like {}", key, Printable(url), right));
}

Status CheckUrls(const Config& c) {
  const EnvSection& e = c.env;
  if (e.kind == "openenv") {
    // ws:// and wss:// as well.
    const std::string http = e.url.starts_with("ws") ? "http" + e.url.substr(2) : e.url;
    if (!ParseUrl(http).ok()) return NoUrl("env.url", e.url, "http://127.0.0.1:8000");
  }
  if (!e.mcp_url.empty() && !ParseUrl(e.mcp_url).ok()) {
    return NoUrl("env.mcp_url", e.mcp_url, "http://127.0.0.1:8000/mcp");
  }
  for (const std::string& server : c.rollout.servers) {
    // Paths are put behind it, as behind "unix:/path/of.sock:".
    if (ParseUrl(server + "/health").ok()) continue;
    return NoUrl("rollout.servers", server, "http://127.0.0.1:8000 or unix:/path/of.sock:");
  }
  return OkStatus();
}

Status CheckAscending(std::string_view key, const std::vector<int64_t>& sizes,
                      std::string_view right) {
  const bool ascending = std::ranges::adjacent_find(sizes, std::greater_equal()) == sizes.end();
  if (sizes.empty() || (sizes.front() > 0 && ascending)) return OkStatus();
  return InvalidArgument(
      fmt::format("{} = [{}] must be positive and ascending: {}, or leave it out", key,
                  fmt::join(sizes, ", "), right));
}

// Other engines have no programs of ours.
Status CheckEngineSizes(const RolloutSection& r) {
  if (r.engine != "builtin") return OkStatus();
  const std::string buckets =
      fmt::format("write for instance [{}, {}], where the last is rollout.context",
                  std::max<int64_t>(1, r.context / 2), r.context);
  FB_RETURN_IF_ERROR(CheckAscending("rollout.context_buckets", r.context_buckets, buckets));
  if (!r.context_buckets.empty() && r.context_buckets.back() != r.context) {
    return InvalidArgument(fmt::format(
        "rollout.context_buckets ends at {}, but rollout.context = {}: the last bucket must be the "
        "context; {}, or leave it out",
        r.context_buckets.back(), r.context, buckets));
  }
  FB_RETURN_IF_ERROR(CheckAscending("rollout.prefill_chunks", r.prefill_chunks,
                                    "write for instance [16, 64, 128]"));
  if (!r.prefill_chunks.empty() && r.prefill_chunks.front() > r.context) {
    return InvalidArgument(fmt::format(
        "rollout.prefill_chunks begins with {}, but rollout.context = {}: a slot holds no such "
        "chunk; begin with a smaller one, or leave it out",
        r.prefill_chunks.front(), r.context));
  }
  return OkStatus();
}

}  // namespace

Status CheckValues(const Config& c) {
  FB_RETURN_IF_ERROR(CheckCommand("env.command", c.env.command));
  FB_RETURN_IF_ERROR(CheckCommand("env.mcp_command", c.env.mcp_command));
  if (!nlohmann::json::parse(c.env.options, nullptr, /*allow_exceptions=*/false).is_object()) {
    return InvalidArgument(
        fmt::format("env.options = '{}' must be a JSON object, for instance '{{\"digits\": 1}}'",
                    Printable(c.env.options)));
  }
  FB_RETURN_IF_ERROR(CheckUrls(c));
  return CheckEngineSizes(c.rollout);
}

}  // namespace forebay::control
