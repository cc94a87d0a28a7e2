#include "forebay/models/llama/config.h"

#include <string>

#include "forebay/base/status.h"
#include "forebay/models/config_reader.h"

namespace forebay::models {

Result<LlamaConfig> ParseLlamaConfig(const std::string& config_json) {
  FB_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse(config_json, "Llama"));
  FB_RETURN_IF_ERROR(reader.ExpectFalse({"attention_bias", "mlp_bias"}));
  FB_RETURN_IF_ERROR(reader.ExpectString("hidden_act", {"silu"}));
  LlamaConfig config;
  FB_ASSIGN_OR_RETURN(config.base, reader.Base("LlamaForCausalLM", /*tied=*/false));
  FB_ASSIGN_OR_RETURN(config.rope_scaling, reader.Rope(&config.base));
  return config;
}

}  // namespace forebay::models
