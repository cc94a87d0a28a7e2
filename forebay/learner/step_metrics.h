// StepMetrics: what one optimizer step did and where its time went.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace forebay::learner {

struct StepMetrics {
  int64_t step = 0;            // optimizer steps so far, this one included: one a batch
  int64_t policy_version = 0;  // of the weights after this step
  int64_t batch_sequence = 0;
  bool replay = false;   // a batch that was leased before a crash
  bool updated = false;  // false: a no-op (nothing to learn from) or a gradient that was not finite
  bool non_finite = false;  // the update was skipped because of its gradient norm

  // Of the trajectories.
  int64_t trajectories = 0, groups = 0;
  std::vector<int64_t> trajectory_ids;  // as the batch lists them
  std::string batch_digest;             // of the encoded trajectories, in that order
  int64_t zero_advantage = 0;           // trajectories whose group has one reward
  double reward_mean = 0, reward_std = 0;
  int64_t staleness_min = 0, staleness_max = 0;  // in policy versions
  double staleness_mean = 0;
  std::map<int64_t, int64_t> staleness;  // age -> trajectories
  std::map<int64_t, int64_t> lengths;    // tokens -> trajectories
  int64_t tokens = 0, loss_tokens = 0;   // of all trajectories

  // Of what the device was given (without what skip_zero_advantage leaves out).
  int64_t packed_tokens = 0;  // real tokens
  int64_t padded_tokens = 0;  // rows * length: real tokens and padding
  int64_t micro_batches = 0;
  double padding_waste() const {
    return padded_tokens == 0
               ? 0
               : 1 - static_cast<double>(packed_tokens) / static_cast<double>(padded_tokens);
  }

  // Of the loss tokens that the device was given.
  double loss = 0;
  double ratio_mean = 0;  // exp(logp - rollout_logprob), untruncated
  double clip_fraction = 0, capped_fraction = 0;
  double kl = 0;               // k3 estimate, rollout policy to learner
  double logprob_gap_max = 0;  // |logp - rollout_logprob|
  double entropy = 0;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;

  std::string weights_digest;  // of all weights after this step (weights::Digest)

  int64_t shapes = 0;               // compiled row shapes that this step could choose from
  int64_t programs = 0;             // compiled so far
  int64_t programs_ahead = 0;       // of them in the background: no step waited for them
  std::string compile_ahead_error;  // why no more shapes are tried; "" while they are

  // Seconds. In a run, a step takes from the end of the one before on the device to its own end
  // there: wall_s = device_s (the device computed) + lease_wait_s (there was no batch, also
  // while the step before was published) +
  // dispatch_gap_s (there was one, and the device had nothing to do all the same).
  double wall_s = 0, device_s = 0, lease_wait_s = 0, dispatch_gap_s = 0;
  // Of the learner's thread; the device computes meanwhile, where there is a batch.
  double pack_s = 0, upload_s = 0, publish_s = 0;
  double digest_s = 0;  // of publish_s
  double utilization() const { return wall_s > 0 ? device_s / wall_s : 0; }
};

}  // namespace forebay::learner
