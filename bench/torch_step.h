// TorchStep: the optimizer step that bench/peers/torch_learner.py runs in a process of its own.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/buffer_scratch.h"
#include "bench/peers/server_process.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"

namespace forebay::bench {

struct TorchOutcome {
  double seconds = 0;  // as the peer measured them
  double loss = 0, grad_norm = 0;
  std::string version;
};

class TorchStep {
 public:
  // "eager", "compiled"; empty where bench/peers/setup_torch.sh did not run.
  static std::vector<std::string> Variants();
  // Starts the process with SmolLM2's weights (checkpoint names) and the batch of every step.
  static Result<std::unique_ptr<TorchStep>> Create(const std::string& variant,
                                                   const weights::TensorMap& tensors,
                                                   const learner::MicroBatch& batch);
  ~TorchStep();
  TorchStep(const TorchStep&) = delete;
  TorchStep& operator=(const TorchStep&) = delete;

  // Blocks. kUnavailable: the process ended.
  Result<TorchOutcome> Run(double learning_rate);

 private:
  explicit TorchStep(ScratchFolder folder);
  bool Connect(const std::string& address);

  ScratchFolder folder_;
  std::unique_ptr<ServerProcess> process_;
  std::FILE* stream_ = nullptr;  // to and from it
};

}  // namespace forebay::bench
