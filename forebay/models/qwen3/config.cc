#include "forebay/models/qwen3/config.h"

#include <string>

#include "forebay/base/status.h"
#include "forebay/models/config_reader.h"
#include "forebay/models/qwen2/windows.h"

namespace forebay::models {

Result<Qwen3Config> ParseQwen3Config(const std::string& config_json) {
  FB_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse(config_json, "Qwen3"));
  FB_RETURN_IF_ERROR(reader.ExpectString("hidden_act", {"silu"}));
  FB_RETURN_IF_ERROR(reader.ExpectFalse({"attention_bias"}));
  Qwen3Config config;
  FB_ASSIGN_OR_RETURN(config.base, reader.Base("Qwen3ForCausalLM", /*tied=*/false));
  FB_ASSIGN_OR_RETURN(config.rope_scaling, reader.Rope(&config.base));
  FB_ASSIGN_OR_RETURN(config.windows, ReadQwenWindows(reader, config.base.layers));
  return config;
}

}  // namespace forebay::models
