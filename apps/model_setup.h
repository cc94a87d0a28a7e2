// LoadedModel: the model of a run in every form that the rooms need it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/models/model.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/model_files.h"

namespace forebay::apps {

struct LoadedModel {
  weights::ModelFiles files;   // tensors are empty: moved to `initial`
  weights::TensorMap initial;  // checkpoint names and layouts
  std::shared_ptr<const models::Model> model;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<tokenizer::ChatTemplate> chat;
  std::vector<std::string> stop_tokens;  // by text
  std::string bos_token, eos_token;      // by text, as the chat template calls them; "" if none
};

// The model alone, without reading weights, and checked against the learner's mesh.
Result<std::unique_ptr<models::Model>> ReadModel(const control::Config& config);

// Reads model.path (or makes a tiny: model from run.seed). Blocks. Errors name the file; those of
// ReadModel come before weights are read.
Result<LoadedModel> LoadModel(const control::Config& config);

}  // namespace forebay::apps
