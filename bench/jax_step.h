// JaxStep: the optimizer step that bench/peers/jax_learner.py wrote, run through our Client on the
// same plugin, so that nothing but the program differs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::bench {

// Names of the variants in `folder`; empty when there is no such folder.
std::vector<std::string> JaxVariants(const std::string& folder);

struct JaxOutcome {
  double loss = 0, grad_norm = 0;
};

class JaxStep {
 public:
  // Reads and compiles FOLDER/VARIANT. Errors: kNotFound, kDataLoss (files that do not fit each
  // other), the compiler's. `client` outlives it.
  static Result<std::unique_ptr<JaxStep>> Create(const std::string& folder,
                                                 const std::string& variant, xla::Client& client);

  models::LayerLayout layout() const { return layout_; }
  learner::BucketShape shape() const { return shape_; }
  const std::string& jax_version() const { return jax_version_; }

  // Weights and zero moments. kInvalidArgument for what does not fit the model.
  Status Load(const models::Model& model, const weights::TensorMap& tensors);
  // One step; blocks until done. CHECKs the batch's shape.
  Result<JaxOutcome> Run(const learner::MicroBatch& batch, const std::vector<float>& hyper);

  // Arguments, results and temporaries while a step runs.
  Result<int64_t> PeakBytes() const;

 private:
  explicit JaxStep(xla::Client& client) : client_(client) {}

  xla::Client& client_;
  std::shared_ptr<xla::Executable> executable_;
  models::LayerLayout layout_ = models::LayerLayout::kPerLayer;
  learner::BucketShape shape_;
  std::string jax_version_;
  std::vector<xla::Buffer> state_;  // weights and moments, the donated arguments
};

}  // namespace forebay::bench
