// OptimizerProgram: the apply program with parameters and state on its devices, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

inline constexpr OptimizerKind kAllOptimizers[] = {OptimizerKind::kAdamW, OptimizerKind::kAdamW8bit,
                                                   OptimizerKind::kAdafactor, OptimizerKind::kLion,
                                                   OptimizerKind::kMuon};

// One whole array a parameter.
using FloatArrays = std::vector<std::vector<float>>;
using ByteArrays = std::vector<std::vector<std::byte>>;

// Normal, the same for a seed.
FloatArrays RandomArrays(std::span<const models::ParamSpec> specs, uint64_t seed, double scale);

class OptimizerProgram {
 public:
  // State of zeros. CHECKs that the program compiles. `client` outlives it.
  OptimizerProgram(xla::Client& client, const OptimizerOptions& options,
                   std::vector<models::ParamSpec> specs, const FloatArrays& params,
                   const xla::Mesh& mesh = {});

  // Returns the gradients' norm.
  float Step(const FloatArrays& gradients, double rate);
  std::vector<float> Param(size_t i) const;
  // All bytes: parameters, then state.
  ByteArrays Save() const;
  // What Save gave, on any mesh, after so many updates.
  void Load(const ByteArrays& saved, int64_t updates);

 private:
  xla::Buffer Place(std::span<const std::byte> bytes, const xla::Shape& shape,
                    const xla::PartitionSpec& partition) const;
  xla::Buffer Place(const std::vector<float>& values, const xla::Shape& shape,
                    const xla::PartitionSpec& partition) const;

  xla::Client& client_;
  const OptimizerOptions options_;
  const xla::Mesh mesh_;
  const std::vector<models::ParamSpec> specs_;
  const std::vector<StateSpec> states_;
  std::shared_ptr<xla::Executable> program_;
  std::vector<xla::Buffer> buffers_;  // parameters, then state
  int64_t updates_ = 0;
};

}  // namespace forebay::learner
