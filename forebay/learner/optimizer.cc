#include "forebay/learner/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/models/model.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Value;

constexpr double kAdafactorDecay = 0.8;  // 1 - t^-0.8
constexpr int64_t kUpdateNumbers = int64_t{1} << 16;

constexpr OptimizerKind kKinds[] = {OptimizerKind::kAdamW, OptimizerKind::kAdamW8bit,
                                    OptimizerKind::kAdafactor, OptimizerKind::kLion,
                                    OptimizerKind::kMuon};

Rule RuleOf(OptimizerKind kind, const models::ParamSpec& spec, const xla::Mesh& mesh) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return AdamWRule(spec);
    case OptimizerKind::kAdamW8bit:
      return AdamW8bitRule(spec, mesh);
    case OptimizerKind::kAdafactor:
      return AdafactorRule(spec);
    case OptimizerKind::kLion:
      return LionRule(spec);
    case OptimizerKind::kMuon:
      return MuonRule(spec);
  }
  FB_CHECK(false, "unknown optimizer");
}

// Sums the last axis first: one running f32 sum over the 28 million entries of an embedding would
// stop growing at 2^24 equal terms.
Value SquareSum(Value g) {
  const Value square = g * g;
  if (square.dims().size() < 2) return xla::ReduceSum(square, {0});
  const Value by_row = xla::ReduceSum(square, {-1});
  xla::Dims axes(by_row.dims().size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  return xla::ReduceSum(by_row, axes);
}

// Of all gradients; those that are split over the same axes are summed over them together.
Value SquareSum(std::span<const models::ParamSpec> specs, std::span<const Value> grads,
                bool sharded) {
  std::vector<std::pair<xla::Axes, Value>> sums;
  for (size_t i = 0; i < grads.size(); ++i) {
    const xla::Axes axes = sharded ? specs[i].partition.axes() : xla::Axes();
    const auto found = std::ranges::find(sums, axes, &std::pair<xla::Axes, Value>::first);
    if (found == sums.end()) {
      sums.emplace_back(axes, SquareSum(grads[i]));
    } else {
      found->second = found->second + SquareSum(grads[i]);
    }
  }
  Value all;
  for (const auto& [axes, own] : sums) {
    const Value sum = sharded ? xla::Psum(own, axes) : own;
    all = all.empty() ? sum : all + sum;
  }
  return all;
}

Value Scalar(Value hyper, int64_t slot) {
  return xla::Reshape(xla::Slice(hyper, 0, slot, slot + 1), {});
}

}  // namespace

std::optional<OptimizerKind> ParseOptimizerKind(std::string_view name) {
  for (const OptimizerKind kind : kKinds) {
    if (OptimizerKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

std::string_view OptimizerKindName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kAdamW8bit:
      return "adamw_8bit";
    case OptimizerKind::kAdafactor:
      return "adafactor";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kMuon:
      return "muon";
  }
  FB_CHECK(false, "unknown optimizer");
}

Status ValidateOptimizer(const OptimizerOptions& o) {
  const struct {
    std::string_view name;
    double value, low, high;
  } ranges[] = {
      {"weight_decay", o.weight_decay, 0, 1e3}, {"beta1", o.beta1, 0, 1 - 1e-9},
      {"beta2", o.beta2, 0, 1 - 1e-9},          {"adam_eps", o.epsilon, 1e-30, 1},
      {"momentum", o.momentum, 0, 1 - 1e-9},    {"grad_clip", o.grad_clip, 0, 1e30},
  };
  for (const auto& r : ranges) {
    if (r.value >= r.low && r.value <= r.high) continue;  // false for NaN
    return InvalidArgument(fmt::format("learner: {} is {}, it must be from {} to {} (optimizer {})",
                                       r.name, r.value, r.low, r.high, OptimizerKindName(o.kind)));
  }
  return OkStatus();
}

int64_t HyperCount(const OptimizerOptions& options) {
  return options.kind == OptimizerKind::kAdamW8bit ? kUpdateNumber + 1 : kHyperSlots;
}

std::vector<float> HyperParameters(const OptimizerOptions& options, double learning_rate,
                                   int64_t update) {
  const auto t = static_cast<double>(update);
  std::vector<float> hyper(static_cast<size_t>(HyperCount(options)));
  hyper[kLearningRate] = static_cast<float>(learning_rate);
  hyper[kBiasCorrection1] = static_cast<float>(1 / (1 - std::pow(options.beta1, t)));
  hyper[kBiasCorrection2] = options.kind == OptimizerKind::kAdafactor
                                ? static_cast<float>(1 - std::pow(t, -kAdafactorDecay))
                                : static_cast<float>(1 / (1 - std::pow(options.beta2, t)));
  if (options.kind == OptimizerKind::kAdamW8bit) {
    hyper[kUpdateNumber] = static_cast<float>(update % kUpdateNumbers);
  }
  return hyper;
}

std::vector<StateSpec> OptimizerStateSpecs(const OptimizerOptions& options,
                                           std::span<const models::ParamSpec> specs,
                                           const xla::Mesh& mesh) {
  std::vector<StateSpec> out;
  for (size_t i = 0; i < specs.size(); ++i) {
    for (RuleSlot& slot : RuleOf(options.kind, specs[i], mesh).slots) {
      out.push_back({std::move(slot.name), i, std::move(slot.shape), std::move(slot.partition)});
    }
  }
  return out;
}

OptimizerResult OptimizerUpdate(const OptimizerOptions& options,
                                std::span<const models::ParamSpec> specs,
                                std::span<const Value> params, std::span<const Value> state,
                                std::span<const Value> grads, Value hyper, const xla::Mesh& mesh) {
  FB_CHECK(grads.size() == specs.size() && params.size() == specs.size(), "one value a parameter");
  const Value norm = xla::Sqrt(SquareSum(specs, grads, mesh.size() > 1));
  const Value largest = xla::Constant(
      *hyper.graph(), static_cast<double>(std::numeric_limits<float>::max()), DType::kF32);
  const Value finite = xla::Compare(norm, largest, Comparison::kLe);  // false for NaN
  const Value rate = Scalar(hyper, kLearningRate);
  Value scale;
  if (options.grad_clip > 0) {
    scale =
        xla::Min(options.grad_clip / (norm + 1e-6), xla::Constant(*hyper.graph(), 1, DType::kF32));
  }

  OptimizerResult out{.grad_norm = norm};
  size_t at = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const Rule rule = RuleOf(options.kind, specs[i], mesh);
    FB_CHECK(at + rule.slots.size() <= state.size(), "one value a state array");
    const Value p = params[i];
    RuleInput in{.options = options,
                 .spec = specs[i],
                 .mesh = mesh,
                 .param = p,
                 .grad = scale.empty() ? grads[i] : grads[i] * scale,
                 .state = state.subspan(at, rule.slots.size()),
                 .finite = finite,
                 .correction1 = Scalar(hyper, kBiasCorrection1),
                 .correction2 = Scalar(hyper, kBiasCorrection2),
                 .update = {}};
    if (options.kind == OptimizerKind::kAdamW8bit) in.update = Scalar(hyper, kUpdateNumber);
    at += rule.slots.size();
    RuleOutput next = rule.apply(in);
    if (specs[i].decay && options.weight_decay != 0) {
      next.step = next.step + p * options.weight_decay;
    }
    out.params.push_back(xla::Select(finite, p - next.step * rate, p));
    out.state.insert(out.state.end(), next.state.begin(), next.state.end());
  }
  FB_CHECK(at == state.size(), "one value a state array");
  return out;
}

}  // namespace forebay::learner
