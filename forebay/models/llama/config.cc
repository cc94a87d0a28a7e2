#include "forebay/models/llama/config.h"

#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/config_reader.h"
#include "forebay/models/rope.h"

namespace forebay::models {

Result<LlamaConfig> ParseLlamaConfig(const std::string& config_json) {
  FB_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse(config_json, "Llama"));
  FB_RETURN_IF_ERROR(reader.ExpectFalse({"attention_bias", "mlp_bias"}));
  FB_RETURN_IF_ERROR(reader.ExpectString("hidden_act", {"silu"}));
  LlamaConfig config;
  FB_ASSIGN_OR_RETURN(config.base, reader.Base("LlamaForCausalLM", /*tied=*/false));
  FB_ASSIGN_OR_RETURN(config.rope_scaling, reader.Rope(&config.base.rope_theta));
  return config;
}

std::vector<float> RopeFrequencies(const LlamaConfig& config) {
  return RopeFrequencies(config.base.rope_theta, config.base.head_dim,
                         config.rope_scaling ? &*config.rope_scaling : nullptr);
}

}  // namespace forebay::models
