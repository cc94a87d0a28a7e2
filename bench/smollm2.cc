#include "bench/smollm2.h"

#include <memory>
#include <string>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/model_files.h"
#include "forebay/xla/client.h"

namespace forebay::bench {

std::string SmolLm2Path() {
  return std::string(FOREBAY_SOURCE_DIR) + "/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

Status WriteSmolLm2Folder(const std::string& folder) {
  FB_ASSIGN_OR_RETURN(const weights::ModelFiles files, weights::LoadModelFiles(SmolLm2Path()));
  return weights::WriteModelFolder(folder, files);
}

Result<SmolLm2> LoadSmolLm2() {
  auto files = weights::LoadModelFiles(SmolLm2Path());
  if (!files.ok()) {
    return files.status().WithContext("the demo model (tools/setup.sh fetches it)");
  }
  FB_ASSIGN_OR_RETURN(std::unique_ptr<models::Model> model,
                      models::Model::Create(files->config_json));
  return SmolLm2{std::move(model), std::move(files->tensors)};
}

Result<std::unique_ptr<xla::Client>> MakeClient() {
  FB_ASSIGN_OR_RETURN(const std::string plugin, xla::FindPlugin(""));
  return xla::Client::Create(
      {.plugin_path = plugin,
       .cache_dir = std::string(FOREBAY_SOURCE_DIR) + "/runs/bench_programs"});
}

}  // namespace forebay::bench
