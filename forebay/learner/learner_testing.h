// Helpers of the learner's tests: random trajectories, the parity model, a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forebay/buffer/buffer.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/models/model.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::learner {

struct TrajectorySpec {
  int64_t group = 1;
  int32_t member = 0;
  int64_t prompt = 4, action = 8;  // tokens
  int64_t version = 0;
  double reward = 0;
  int32_t vocabulary = 128;
};
// Tokens depend on (group, member) alone; rollout logprobs lie near the uniform policy's.
Trajectory RandomTrajectory(const TrajectorySpec& spec);

// A trajectory as a sequence with the given advantage and weight. `t` outlives it.
TrainSequence AsSequence(const Trajectory& t, double advantage, double token_weight);

// tests/goldens/parity/llama.
struct ParityModel {
  std::unique_ptr<models::Model> model;
  weights::TensorMap tensors;    // model.safetensors
  weights::TensorMap reference;  // reference.safetensors
};
ParityModel LoadParityModel(const std::string& source_dir);

// The CPU plugin that set-up installed. CHECKs that there is one.
std::unique_ptr<xla::Client> MakeClient();

// A new empty folder under the system's temporary one.
std::string MakeTestFolder();

// The largest |a - b| of a tensor relative to the largest |b|; CHECKs equal shapes.
double RelativeGap(const weights::HostTensor& a, const weights::HostTensor& b);
// The worst of all tensors. CHECKs equal names.
double RelativeGap(const weights::TensorMap& a, const weights::TensorMap& b);

}  // namespace forebay::learner
