#include "apps/mesh_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "apps/room_options.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/learner/learner.h"
#include "forebay/models/model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/sharding.h"

namespace forebay::apps {
namespace {

// A number of the model that a mesh must divide.
struct Size {
  std::string_view what, key;  // "query heads", as config.json calls them
  int64_t value;
};

// The divisors of n up to 4096.
std::string Divisors(int64_t n) {
  std::string text;
  for (int64_t d = 1; d <= std::min<int64_t>(n, 4096); ++d) {
    if (n % d == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", d);
  }
  return text;
}

Status CheckDivides(std::string_view axis, int64_t devices, const std::vector<Size>& sizes) {
  int64_t common = 0;
  for (const Size& size : sizes) common = std::gcd(common, size.value);
  for (const Size& size : sizes) {
    if (size.value % devices == 0) continue;
    return InvalidArgument(
        fmt::format("{} = {} does not divide the model's {} {} (config.json: {}): it may be {}",
                    axis, devices, size.value, size.what, size.key, Divisors(common)));
  }
  return OkStatus();
}

// The width of the feed-forward layers, or of one expert; and how many experts there are (0: none).
struct FeedForward {
  int64_t width = 0, experts = 0;
};
FeedForward FeedForwardOf(const models::Model& model) {
  for (const models::ParamSpec& spec : model.Params(models::LayerLayout::kPerLayer)) {
    if (!spec.name.ends_with("up_proj.weight")) continue;
    const auto& dims = spec.shape.dims;
    return {.width = dims[dims.size() - 2], .experts = dims.size() == 3 ? dims[0] : 0};
  }
  return {};
}

}  // namespace

Status CheckMesh(const control::Config& config, const models::Model& model) {
  const control::MeshSection& m = config.mesh;
  const learner::LearnerOptions options = MakeLearnerOptions(config, "");
  if (options.mesh.size() == 1) return OkStatus();
  const models::ModelConfig& c = model.config();
  const FeedForward ff = FeedForwardOf(model);
  std::vector<Size> split = {{"query heads", "num_attention_heads", c.query_heads},
                             {"key/value heads", "num_key_value_heads", c.kv_heads},
                             {"words of the vocabulary", "vocab_size", c.vocab_size}};
  if (ff.width > 0) {
    split.push_back(ff.experts > 0
                        ? Size{"features of an expert", "moe_intermediate_size", ff.width}
                        : Size{"features of a feed-forward layer", "intermediate_size", ff.width});
  }
  if (ff.experts == 0 && m.experts != "auto") {
    return InvalidArgument(fmt::format(
        "mesh.experts = \"{}\" has no effect: the model has no experts; leave mesh.experts out",
        m.experts));
  }
  FB_RETURN_IF_ERROR(CheckDivides("mesh.tensor", m.tensor, split));
  if (ff.experts > 0) {
    FB_RETURN_IF_ERROR(
        CheckDivides("mesh.expert", m.expert, {{"experts", "num_experts", ff.experts}}));
  }
  FB_RETURN_IF_ERROR(CheckDivides("mesh.fsdp x mesh.expert x mesh.context",
                                  m.fsdp * m.expert * m.context,
                                  {{"features of a token", "hidden_size", c.width}}));
  for (const models::ParamSpec& spec : model.Params(options.layout)) {
    const Status fits = xla::CheckSpec(options.mesh, spec.partition, spec.shape);
    if (!fits.ok()) return fits.WithContext("[mesh] does not fit " + spec.name);
  }
  return OkStatus();
}

Status CheckDeviceCount(const control::Config& config, int64_t devices) {
  const xla::MeshSizes m = MakeMeshSizes(config);
  const int64_t wanted = m.data * m.fsdp * m.expert * m.context * m.tensor;
  if (wanted <= devices) return OkStatus();
  return InvalidArgument(fmt::format(
      "mesh.data x fsdp x expert x context x tensor = {} x {} x {} x {} x {} needs {} devices, but "
      "there {}: lower an axis; to try a mesh on the CPU, show it more devices with "
      "--virtual-devices {} (device.virtual_devices)",
      m.data, m.fsdp, m.expert, m.context, m.tensor, wanted,
      devices == 1 ? "is 1" : fmt::format("are {}", devices), wanted));
}

Status CheckDevices(const control::Config& config) {
  if (MakeLearnerOptions(config, "").mesh.size() == 1) return OkStatus();
  FB_ASSIGN_OR_RETURN(const std::string plugin,
                      xla::FindPlugin(config.Resolve(config.device.plugin)));
  FB_ASSIGN_OR_RETURN(
      const std::unique_ptr<xla::Client> client,
      xla::Client::Create({.plugin_path = plugin,
                           .cpu_device_count = static_cast<int>(config.device.virtual_devices)}));
  const auto addressable = std::ranges::count_if(client->devices(), &xla::DeviceInfo::addressable);
  return CheckDeviceCount(config, addressable);
}

}  // namespace forebay::apps
