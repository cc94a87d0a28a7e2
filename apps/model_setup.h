// LoadedModel: the model of a run in every form that the rooms need it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/model_files.h"

namespace forebay::apps {

struct LoadedModel {
  weights::ModelFiles files;   // tensors are empty: moved to `initial`
  weights::TensorMap initial;  // checkpoint names and layouts
  std::shared_ptr<const models::Model> model;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<tokenizer::ChatTemplate> chat;  // null: a base model, which has no template
  std::vector<int32_t> stop_tokens;               // empty: nothing says what ends a turn
  std::string bos_token, eos_token;  // by text, as the chat template calls them; "" if none
};

// The model alone, without reading weights, and checked against the learner's mesh.
Result<std::unique_ptr<models::Model>> ReadModel(const control::Config& config);

// Reads model.path (or makes a tiny: model from run.seed). Blocks. Errors name the file; those of
// ReadModel come before weights are read.
Result<LoadedModel> LoadModel(const control::Config& config);

// Whether the model can play the episodes of a run: it has a chat template and an end of turn, and
// rollout.context is within what it was made for. kInvalidArgument says what is missing.
Status CheckAgent(const control::Config& config, const LoadedModel& model);

// The model behind an endpoint; refers to `model` and `engine`.
rollout::ServedModel Served(const LoadedModel& model, std::string name, rollout::Engine* engine);

}  // namespace forebay::apps
