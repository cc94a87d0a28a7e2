// Rules over several keys of a configuration.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/control/config_mistakes.h"
#include "forebay/control/config_schema.h"

namespace forebay::control {
namespace {

constexpr int64_t kDevicesMax = int64_t{1} << 16;

Status CheckHarness(const Config& c) {
  if (c.env.command.empty()) {
    return InvalidArgument(
        "env.command is missing: for env.kind = \"harness\" give the program and its arguments "
        "that play an episode, for instance [\"python3\", \"agent.py\"]");
  }
  if (!c.env.tools.empty()) {
    return InvalidArgument(
        "env.tools has no effect with env.kind = \"harness\": a harness brings its own tools and "
        "names them in its requests; leave env.tools out");
  }
  if (c.rollout.tokens_max != c.rollout.context) {
    return InvalidArgument(fmt::format(
        "rollout.tokens_max = {} and rollout.context = {}: with env.kind = \"harness\" they must "
        "be "
        "the same, because each conversation may fill a slot and is a sequence of its own in a "
        "row; env.episode_tokens_max limits all of an episode's together",
        c.rollout.tokens_max, c.rollout.context));
  }
  return OkStatus();
}

constexpr std::array<std::string_view, 4> kTools = {"calculator", "python", "shell", "mcp"};

Status CheckTools(const EnvSection& env) {
  if (env.kind == "openenv" && env.url.empty()) {
    return InvalidArgument(
        "env.url is missing: for env.kind = \"openenv\" give the server, for instance "
        "\"http://127.0.0.1:8000\"");
  }
  bool mcp = false;
  for (const std::string& tool : env.tools) {
    if (std::ranges::count(env.tools, tool) > 1) {
      return InvalidArgument(fmt::format("env.tools names '{}' twice", tool));
    }
    if (tool == "mcp") {
      mcp = true;
    } else if (std::ranges::find(kTools, tool) == kTools.end()) {
      return InvalidArgument(fmt::format("env.tools has '{}'{} (there are: {})", tool,
                                         DidYouMean(tool, kTools), fmt::join(kTools, ", ")));
    }
  }
  if (mcp && env.mcp_command.empty() == env.mcp_url.empty()) {
    return InvalidArgument(
        "env.tools has mcp: give its server by env.mcp_command or by env.mcp_url, one of them");
  }
  if (!mcp && !(env.mcp_command.empty() && env.mcp_url.empty())) {
    return InvalidArgument(
        "env.mcp_command or env.mcp_url names a server that env.tools does not have: add \"mcp\" "
        "to "
        "env.tools");
  }
  return OkStatus();
}

// A choice of how devices share work that no axis splits would be ignored in silence.
Status CheckMeshChoices(const MeshSection& m) {
  if (m.attention != "auto" && m.context == 1) {
    return InvalidArgument(fmt::format(
        "mesh.attention = \"{}\" has no effect with mesh.context = 1: it says how the devices that "
        "share a row exchange its keys, and no row is shared. Give mesh.context the number of "
        "devices that share one, or leave mesh.attention out",
        m.attention));
  }
  if (m.experts != "auto" && m.expert == 1) {
    return InvalidArgument(fmt::format(
        "mesh.experts = \"{}\" has no effect with mesh.expert = 1: it says how tokens reach "
        "experts "
        "on other devices, and each device has all of them. Give mesh.expert the number of devices "
        "that share the experts, or leave mesh.experts out",
        m.experts));
  }
  return OkStatus();
}

// Rows are rounded up to what divides over the mesh; their lengths are taken as they are.
Status CheckRowLengths(const Config& c) {
  const MeshSection& m = c.mesh;
  const int64_t parts = m.data * m.fsdp * m.expert;
  for (const int64_t length : c.learner.row_lengths) {
    const int64_t rows = std::max<int64_t>(1, c.learner.tokens_per_program / length);
    const int64_t rows_of_one = (rows + parts - 1) / parts;
    if (length % m.context == 0 && rows_of_one * (length / m.context) % m.tensor == 0) continue;
    const int64_t multiple = m.context * m.tensor;
    const int64_t above = (length / multiple + 1) * multiple;
    return InvalidArgument(fmt::format(
        "learner.row_lengths has {}, which mesh.context = {} and mesh.tensor = {} do not divide: "
        "each row is split over both, so use multiples of {}, for instance {}",
        length, m.context, m.tensor, multiple, above));
  }
  return OkStatus();
}

// An URL's end says nothing.
std::string_view WithoutSlashes(std::string_view url) {
  while (url.ends_with('/')) url.remove_suffix(1);
  return url;
}

Status CheckEngine(const Config& c) {
  const RolloutSection& r = c.rollout;
  if (r.engine == "builtin") {
    if (r.servers.empty()) return OkStatus();
    return InvalidArgument(
        "rollout.servers is set, but rollout.engine = \"builtin\" asks none: set rollout.engine to "
        "what they are (forebay, vllm, sglang or llamacpp), or remove them");
  }
  if (r.servers.empty()) {
    return InvalidArgument(fmt::format(
        "rollout.servers is missing: for rollout.engine = \"{}\" give the servers' URLs, for "
        "instance [\"http://127.0.0.1:8000\"]",
        r.engine));
  }
  for (size_t i = 0; i < r.servers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (WithoutSlashes(r.servers[i]) != WithoutSlashes(r.servers[j])) continue;
      return InvalidArgument(fmt::format(
          "rollout.servers has one server twice, as its entries {} and {}: \"{}\" and "
          "\"{}\"; name each server once (rollout.server_requests_max is what one gets)",
          j + 1, i + 1, r.servers[j], r.servers[i]));
    }
  }
  if (r.engine == "llamacpp" && r.reload) {
    return InvalidArgument(
        "rollout.engine = \"llamacpp\": its server cannot take new weights; set rollout.reload = "
        "false");
  }
  const int64_t staleness = c.run.mode == "sync" ? 0 : c.buffer.max_staleness;
  if (!r.reload && c.run.steps > staleness) {
    return InvalidArgument(fmt::format(
        "rollout.reload = false: the servers keep their first weights, and nothing they sample can "
        "be trained on after {} steps (buffer.max_staleness; 0 in sync mode), but run.steps = {}. "
        "Use servers that take new weights, or fewer steps",
        staleness, c.run.steps));
  }
  return OkStatus();
}

}  // namespace

Status CheckCombinations(const Config& c) {
  const int64_t devices =
      c.mesh.data * c.mesh.fsdp * c.mesh.expert * c.mesh.context * c.mesh.tensor;
  if (devices > kDevicesMax) {
    return InvalidArgument(
        fmt::format("mesh: the product of its axes is {} devices; at most {} are possible", devices,
                    kDevicesMax));
  }
  FB_RETURN_IF_ERROR(CheckMeshChoices(c.mesh));
  if (c.device.virtual_devices > 0 && devices > c.device.virtual_devices) {
    return InvalidArgument(fmt::format(
        "mesh.data x fsdp x expert x context x tensor = {} x {} x {} x {} x {} needs {} devices, "
        "but "
        "device.virtual_devices (--virtual-devices) = {}: set it to {}, or lower an axis",
        c.mesh.data, c.mesh.fsdp, c.mesh.expert, c.mesh.context, c.mesh.tensor, devices,
        c.device.virtual_devices, devices));
  }
  if (c.model.path.empty()) {
    return InvalidArgument(
        "model.path is missing: give a Hugging Face folder, a .gguf file, or \"tiny:\"");
  }
  if (c.env.kind == "python" && c.env.command.empty()) {
    return InvalidArgument(
        "env.command is missing: for env.kind = \"python\" give the program and its arguments, "
        "for instance [\"python3\", \"env.py\"]");
  }
  if (c.env.kind == "harness") FB_RETURN_IF_ERROR(CheckHarness(c));
  FB_RETURN_IF_ERROR(CheckTools(c.env));
  if (c.env.kind == "builtin" && c.env.builtin.empty()) {
    return InvalidArgument(
        "env.builtin is missing: for env.kind = \"builtin\" give the environment's name");
  }
  FB_RETURN_IF_ERROR(CheckEngine(c));
  FB_RETURN_IF_ERROR(CheckValues(c));
  if (c.rollout.tokens_max > c.rollout.context) {
    return InvalidArgument(
        fmt::format("rollout.tokens_max = {} does not fit rollout.context = {}: a trajectory must "
                    "fit a slot; raise context "
                    "or lower tokens_max",
                    c.rollout.tokens_max, c.rollout.context));
  }
  const auto& rows = c.learner.row_lengths;
  if (!rows.empty()) {
    const int64_t longest = *std::max_element(rows.begin(), rows.end());
    const int64_t shortest = *std::min_element(rows.begin(), rows.end());
    constexpr int64_t kRowMax = int64_t{1} << 20;  // as rollout.tokens_max
    if (shortest < 1) return InvalidArgument("learner.row_lengths must be positive");
    if (longest > kRowMax) {
      return InvalidArgument(fmt::format(
          "learner.row_lengths end at {}: a row has at most {} tokens", longest, kRowMax));
    }
    if (longest < c.rollout.tokens_max) {
      return InvalidArgument(
          fmt::format("learner.row_lengths end at {}, but rollout.tokens_max = {}: the longest row "
                      "must hold the longest "
                      "trajectory",
                      longest, c.rollout.tokens_max));
    }
    if (static_cast<int64_t>(rows.size()) > c.learner.shapes_max) {
      return InvalidArgument(
          fmt::format("learner.row_lengths has {} entries, but learner.shapes_max = {}",
                      rows.size(), c.learner.shapes_max));
    }
    FB_RETURN_IF_ERROR(CheckRowLengths(c));
  }
  if (c.learner.advantage != "dr_grpo" && c.learner.group_size < 2) {
    return InvalidArgument(
        "learner.group_size must be at least 2: a baseline needs other samples of the task");
  }
  return OkStatus();
}

}  // namespace forebay::control
