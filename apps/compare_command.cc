// forebay compare: the synchronous loop and the decoupled one on the same work.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/comparison.h"
#include "apps/report.h"
#include "apps/train_run.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::apps {

Status Compare(const CompareCommand& command) {
  if (command.config.empty())
    return InvalidArgument("compare needs a configuration file: forebay compare CONFIG.toml");
  FB_ASSIGN_OR_RETURN(const control::Config config,
                      control::LoadConfig(command.config, command.sets));
  const std::string folder =
      command.run.empty() ? DefaultRunFolder(command.config) + "-compare" : command.run;
  FB_ASSIGN_OR_RETURN(
      const Comparison comparison,
      CompareLoops(config, {.run = folder, .overwrite = command.overwrite, .quiet = command.json}));
  if (!command.json) std::fputs(FormatComparison(comparison).c_str(), stdout);
  if (command.json) std::puts(ComparisonJson(comparison).c_str());
  return OkStatus();
}

}  // namespace forebay::apps
