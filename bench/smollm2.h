// The model that the learner and rollout benchmarks measure.
#pragma once

#include <memory>
#include <string>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::bench {

struct SmolLm2 {
  std::shared_ptr<const models::Model> model;
  weights::TensorMap tensors;
};

// The packaged GGUF's file.
std::string SmolLm2Path();
// Writes it as a Hugging Face folder, in f32.
Status WriteSmolLm2Folder(const std::string& folder);
// kNotFound says to run tools/setup.sh.
Result<SmolLm2> LoadSmolLm2();

// The default plugin, with compiled programs kept on disk between runs of the benchmark.
Result<std::unique_ptr<xla::Client>> MakeClient();

}  // namespace forebay::bench
