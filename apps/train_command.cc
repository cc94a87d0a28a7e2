// forebay train.
#include <cstdio>
#include <string>

#include "apps/commands.h"
#include "apps/report.h"
#include "apps/train_run.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/control/config_programs.h"
#include "forebay/control/run_directory.h"

namespace forebay::apps {

Status Train(const TrainCommand& command) {
  TrainRunOptions options{.run = command.run, .quiet = command.quiet};
  std::string config_path = command.config;
  if (command.resume) {
    options.mode = control::OpenMode::kResume;
    config_path = command.run + "/config.toml";
  } else if (config_path.empty()) {
    return InvalidArgument(
        "train needs a configuration file (forebay train CONFIG.toml) or a run to go on with "
        "(--resume RUN)");
  } else {
    if (options.run.empty()) options.run = DefaultRunFolder(config_path);
    if (command.overwrite) options.mode = control::OpenMode::kOverwrite;
  }
  Result<control::Config> config = control::LoadConfig(config_path, command.sets);
  if (command.resume && config.status().code() == StatusCode::kNotFound) {
    return NotFound("'" + command.run + "' holds no run to resume (it has no config.toml)");
  }
  FB_RETURN_IF_ERROR(config.status());
  // Before the model is loaded: that may take minutes.
  FB_RETURN_IF_ERROR(control::CheckPrograms(*config).WithContext(config_path));
  const Result<RunReport> report = RunTraining(*config, options);
  if (command.resume && report.status().code() == StatusCode::kAlreadyExists) {
    // Whoever starts a run again until it ends well is done.
    std::printf("%s\n", report.status().message().c_str());
    return OkStatus();
  }
  FB_RETURN_IF_ERROR(report.status());
  std::fputs(FormatReport(*report).c_str(), stdout);
  return OkStatus();
}

}  // namespace forebay::apps
