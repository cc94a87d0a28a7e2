// forebay export: a checkpoint, or a model, as a Hugging Face folder.
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "apps/commands.h"
#include "apps/model_setup.h"
#include "apps/run_checkpoint.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/train_step.h"
#include "forebay/weights/model_files.h"

namespace forebay::apps {
namespace {

bool IsModel(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path + "/config.toml", ignored)) return false;
  return path.ends_with(".gguf") ? std::filesystem::is_regular_file(path, ignored)
                                 : std::filesystem::exists(path + "/config.json", ignored);
}

Status ExportModel(const ExportCommand& command) {
  if (command.adapters || command.step >= 0) {
    return InvalidArgument("'" + command.source +
                           "' is a model, not a run: --adapters and --step are for runs");
  }
  FB_ASSIGN_OR_RETURN(const weights::ModelFiles files, weights::LoadModelFiles(command.source));
  FB_RETURN_IF_ERROR(weights::WriteModelFolder(command.output, files));
  std::printf("wrote %s: the weights of %s\n", command.output.c_str(), command.source.c_str());
  return OkStatus();
}

}  // namespace

Status Export(const ExportCommand& command) {
  if (IsModel(command.source)) return ExportModel(command);
  Result<control::Config> config = control::LoadConfig(command.source + "/config.toml", {});
  if (config.status().code() == StatusCode::kNotFound) {
    return NotFound("'" + command.source + "' holds no run (it has no config.toml)");
  }
  FB_RETURN_IF_ERROR(config.status());
  FB_ASSIGN_OR_RETURN(const learner::LoadedCheckpoint checkpoint,
                      LoadRunCheckpoint(command.source, command.step));
  // Configuration, tokenizer and template are those of the model that the run started from.
  FB_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(*config));
  const learner::TrainState& train = checkpoint.data.state.train;
  const learner::LoraOptions& lora = checkpoint.data.lora;
  if (command.adapters) {
    if (train.adapters.empty()) {
      return FailedPrecondition(
          "the run has no LoRA adapters (learner.lora_rank was 0): export it without --adapters");
    }
    FB_RETURN_IF_ERROR(
        learner::ExportPeft(command.output, lora, train.adapters, config->model.path));
    std::printf("wrote %s: the adapters after step %lld, for PEFT\n", command.output.c_str(),
                static_cast<long long>(checkpoint.data.state.step));
    return OkStatus();
  }
  FB_ASSIGN_OR_RETURN(model.files.tensors, learner::MergeAdapters(train.params, train.adapters,
                                                                  learner::LoraScale(lora)));
  FB_RETURN_IF_ERROR(weights::WriteModelFolder(command.output, model.files));
  std::printf("wrote %s: the weights after step %lld\n", command.output.c_str(),
              static_cast<long long>(checkpoint.data.state.step));
  return OkStatus();
}

}  // namespace forebay::apps
