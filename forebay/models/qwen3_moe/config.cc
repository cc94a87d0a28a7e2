#include "forebay/models/qwen3_moe/config.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "forebay/base/status.h"
#include "forebay/models/config_reader.h"
#include "forebay/models/qwen2/windows.h"

namespace forebay::models {
namespace {

constexpr int64_t kExpertsMax = 4096;

Status CheckExperts(const ConfigReader& reader, const ModelConfig& config) {
  if (config.experts > kExpertsMax || config.experts_per_token > config.experts) {
    return InvalidArgument(fmt::format(
        "config.json: \"num_experts\" is {} and \"num_experts_per_tok\" {}; at most {} experts are "
        "supported, and a token cannot have more than there are",
        config.experts, config.experts_per_token, kExpertsMax));
  }
  int64_t step = 1;
  FB_RETURN_IF_ERROR(reader.Size("decoder_sparse_step", &step));
  if (step == 1 && reader.EmptyList("mlp_only_layers")) return OkStatus();
  return InvalidArgument(
      "config.json: \"decoder_sparse_step\" and \"mlp_only_layers\" ask for layers without "
      "experts; "
      "supported are Qwen3-MoE models in which all layers have experts (1 and [])");
}

}  // namespace

Result<Qwen3MoeConfig> ParseQwen3MoeConfig(const std::string& config_json) {
  FB_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse(config_json, "Qwen3-MoE"));
  FB_RETURN_IF_ERROR(reader.ExpectString("hidden_act", {"silu"}));
  FB_RETURN_IF_ERROR(reader.ExpectFalse({"attention_bias"}));
  Qwen3MoeConfig config;
  FB_ASSIGN_OR_RETURN(config.base, reader.Base("Qwen3MoeForCausalLM", /*tied=*/false));
  FB_ASSIGN_OR_RETURN(config.rope_scaling, reader.Rope(&config.base));
  FB_ASSIGN_OR_RETURN(config.windows, ReadQwenWindows(reader, config.base.layers));
  FB_RETURN_IF_ERROR(reader.Size("num_experts", &config.base.experts, true));
  FB_RETURN_IF_ERROR(reader.Size("num_experts_per_tok", &config.base.experts_per_token, true));
  FB_RETURN_IF_ERROR(reader.Size("moe_intermediate_size", &config.expert_width, true));
  FB_RETURN_IF_ERROR(reader.Bool("norm_topk_prob", &config.normalize));
  FB_RETURN_IF_ERROR(CheckExperts(reader, config.base));
  return config;
}

}  // namespace forebay::models
