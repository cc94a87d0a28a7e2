#include "forebay/learner/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

using weights::HostTensor;
using xla::Value;
using xla::Values;

constexpr std::string_view kWeight = ".weight", kLoraA = ".lora_A", kLoraB = ".lora_B";
constexpr std::string_view kAllLinear = "all-linear";
constexpr int64_t kRankMax = 4096;

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// `pattern` with any number of *, each for any characters.
bool Matches(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t from = star; from <= text.size(); ++from) {
    if (Matches(rest, text.substr(from))) return true;
  }
  return false;
}

bool IsLinear(const models::ParamSpec& spec) {
  return RankOfOne(spec) == 2 && spec.decay && spec.name.ends_with(kWeight);
}

bool Targets(const std::string& target, const models::ParamSpec& spec) {
  const std::string module = ModuleName(spec.name);
  if (target == kAllLinear) {
    return !Contains(module, "embed_tokens") && !Contains(module, "lm_head");
  }
  return Matches(target, module) || module.ends_with("." + target);
}

}  // namespace

Status ValidateLora(const LoraOptions& o) {
  if (o.rank == 0) return OkStatus();
  if (o.rank < 0 || o.rank > kRankMax) {
    return InvalidArgument(fmt::format(
        "learner: lora_rank is {}, it must be from 0 (no adapters) to {}", o.rank, kRankMax));
  }
  if (!(o.alpha > 0 && o.alpha <= 1e6)) {
    return InvalidArgument(
        fmt::format("learner: lora_alpha is {}, it must be above 0 and at most 1000000", o.alpha));
  }
  if (o.targets.empty()) {
    return InvalidArgument(
        "learner: lora_targets is empty: name the linears that get an adapter, for instance "
        "[\"q_proj\", \"v_proj\"] or [\"all-linear\"]");
  }
  return OkStatus();
}

double LoraScale(const LoraOptions& options) {
  const auto rank = static_cast<double>(options.rank);
  return options.alpha / (options.rslora ? std::sqrt(rank) : rank);
}

std::string ModuleName(const std::string& parameter) {
  std::string_view name = parameter;
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  if (name.ends_with(kLoraA) || name.ends_with(kLoraB)) name.remove_suffix(kLoraA.size());
  return std::string(name);
}

Result<std::vector<models::ParamSpec>> LoraSpecs(std::span<const models::ParamSpec> specs,
                                                 const LoraOptions& options) {
  FB_RETURN_IF_ERROR(ValidateLora(options));
  for (const std::string& target : options.targets) {
    if (std::ranges::any_of(
            specs, [&](const auto& spec) { return IsLinear(spec) && Targets(target, spec); })) {
      continue;
    }
    std::set<std::string> modules;
    for (const auto& spec : specs) {
      if (!IsLinear(spec)) continue;
      const std::string module = ModuleName(spec.name);
      modules.insert(module.substr(module.rfind('.') + 1));
    }
    return InvalidArgument(
        fmt::format("learner.lora_targets: \"{}\" matches no linear of this model; it has {}",
                    target, fmt::join(modules, ", ")));
  }
  std::vector<models::ParamSpec> out;
  for (const auto& spec : specs) {
    if (!IsLinear(spec) ||
        std::ranges::none_of(options.targets, [&](const auto& t) { return Targets(t, spec); })) {
      continue;
    }
    models::ParamSpec a = spec, b = spec;
    const size_t rank = spec.shape.dims.size();
    a.shape.dims[rank - 2] = options.rank;
    b.shape.dims[rank - 1] = options.rank;
    a.name = fmt::format("{}{}{}", ModuleName(spec.name), kLoraA, kWeight);
    b.name = fmt::format("{}{}{}", ModuleName(spec.name), kLoraB, kWeight);
    // B A is then split as the weight is, without a message.
    std::vector<xla::Axes> split(rank);
    for (size_t i = 0; i < rank; ++i) split[i] = spec.partition.dim(static_cast<int64_t>(i));
    std::vector<xla::Axes> of_a = split, of_b = split;
    of_a[rank - 2] = of_b[rank - 1] = {};
    a.partition = xla::PartitionSpec(std::move(of_a));
    b.partition = xla::PartitionSpec(std::move(of_b));
    out.push_back(std::move(a));
    out.push_back(std::move(b));
  }
  return out;
}

Values ApplyLora(std::span<const models::ParamSpec> specs, std::span<const Value> base,
                 std::span<const models::ParamSpec> adapter_specs, std::span<const Value> adapters,
                 double scale) {
  FB_CHECK(specs.size() == base.size() && adapter_specs.size() == adapters.size(),
           "one value a spec");
  std::map<std::string, size_t> first;  // module -> its A
  for (size_t i = 0; i < adapter_specs.size(); i += 2) {
    first[ModuleName(adapter_specs[i].name)] = i;
  }
  Values out(base.begin(), base.end());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto found = first.find(ModuleName(specs[i].name));
    if (found == first.end() || !IsLinear(specs[i])) continue;
    const Value a = adapters[found->second], b = adapters[found->second + 1];
    out[i] = base[i] + xla::MatMul(b, a) * scale;
  }
  return out;
}

weights::TensorMap InitialAdapters(std::span<const models::ParamSpec> adapter_specs,
                                   uint64_t seed) {
  weights::TensorMap out;
  for (size_t i = 0; i < adapter_specs.size(); ++i) {
    const models::ParamSpec& spec = adapter_specs[i];
    std::span<std::byte> bytes;
    HostTensor tensor = HostTensor::Allocate(spec.shape, &bytes);
    std::memset(bytes.data(), 0, bytes.size());
    if (i % 2 == 0) {
      Rng rng(DeriveSeed(seed, i));
      const double bound = 1 / std::sqrt(static_cast<double>(spec.shape.dims.back()));
      auto* const values = reinterpret_cast<float*>(bytes.data());
      for (int64_t k = 0; k < spec.shape.elements(); ++k) {
        values[k] = static_cast<float>(bound * (2 * rng.Uniform() - 1));
      }
    }
    out.emplace(spec.name, std::move(tensor));
  }
  return out;
}

}  // namespace forebay::learner
