#include "forebay/learner/learner_testing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/rng.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/models/model.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::learner {

Trajectory RandomTrajectory(const TrajectorySpec& spec) {
  Rng rng(DeriveSeed(11, static_cast<uint64_t>(spec.group), static_cast<uint64_t>(spec.member)));
  Trajectory t;
  t.id = {.trajectory_id = spec.group * 64 + spec.member + 1,
          .group_id = spec.group,
          .member = spec.member,
          .task_id = spec.group};
  t.environment = "random";
  const int64_t n = spec.prompt + spec.action;
  for (int64_t i = 0; i < n; ++i) {
    const bool sampled = i >= spec.prompt;
    t.tokens.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(spec.vocabulary))));
    t.loss_mask.push_back(sampled ? 1 : 0);
    const double uniform = -std::log(static_cast<double>(spec.vocabulary));
    t.rollout_logprobs.push_back(sampled ? static_cast<float>(uniform + 0.3 * rng.Normal()) : 0.0F);
  }
  t.versions = {{spec.version, static_cast<int32_t>(spec.action)}};
  t.turns = {{.kind = TurnKind::kPrompt, .begin = 0, .end = static_cast<int32_t>(spec.prompt)},
             {.kind = TurnKind::kAction,
              .begin = static_cast<int32_t>(spec.prompt),
              .end = static_cast<int32_t>(n)}};
  t.rewards = {{"r", spec.reward}};
  return t;
}

TrainSequence AsSequence(const Trajectory& t, double advantage, double token_weight) {
  return {t.tokens, t.loss_mask, t.rollout_logprobs, advantage, token_weight, t.temperature};
}

ParityModel LoadParityModel(const std::string& source_dir) {
  const std::string folder = source_dir + "/tests/goldens/parity/llama";
  auto config = ReadFile(folder + "/config.json");
  FB_CHECK(config.ok(), config.status().ToString());
  auto model = models::Model::Create(*config);
  FB_CHECK(model.ok(), model.status().ToString());
  auto tensors = weights::ReadSafetensors(folder + "/model.safetensors");
  FB_CHECK(tensors.ok(), tensors.status().ToString());
  auto reference = weights::ReadSafetensors(folder + "/reference.safetensors");
  FB_CHECK(reference.ok(), reference.status().ToString());
  return {std::move(*model), std::move(*tensors), std::move(*reference)};
}

std::unique_ptr<xla::Client> MakeClient() {
  auto plugin = xla::FindPlugin("");
  FB_CHECK(plugin.ok(), plugin.status().ToString());
  auto client = xla::Client::Create({.plugin_path = *plugin});
  FB_CHECK(client.ok(), client.status().ToString());
  return std::move(*client);
}

std::string MakeTestFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "forebay_learner_XXXXXX").string();
  FB_CHECK(mkdtemp(path.data()) != nullptr, "mkdtemp");
  return path;
}

double RelativeGap(const weights::HostTensor& a, const weights::HostTensor& b) {
  FB_CHECK(a.shape() == b.shape(), a.shape().ToString() + " and " + b.shape().ToString());
  const auto x = a.as<float>();
  const auto y = b.as<float>();
  double gap = 0, scale = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    if (!(d <= gap)) gap = d;  // keeps NaN
    scale = std::max(scale, static_cast<double>(std::abs(y[i])));
  }
  return scale > 0 ? gap / scale : gap;
}

double RelativeGap(const weights::TensorMap& a, const weights::TensorMap& b) {
  FB_CHECK(a.size() == b.size(), "different tensors");
  double worst = 0;
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    FB_CHECK(other != b.end(), name);
    const double gap = RelativeGap(tensor, other->second);
    if (!(gap <= worst)) worst = gap;
  }
  return worst;
}

}  // namespace forebay::learner
