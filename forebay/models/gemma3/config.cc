#include "forebay/models/gemma3/config.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/config_reader.h"

namespace forebay::models {
namespace {

// Where the file has no list, every `pattern`-th layer is global, the others slide.
Result<std::vector<bool>> ReadSlidingLayers(const ConfigReader& reader, int64_t layers) {
  FB_ASSIGN_OR_RETURN(std::vector<bool> sliding, reader.SlidingLayers(layers));
  if (!sliding.empty()) return sliding;
  int64_t pattern = 6;
  FB_RETURN_IF_ERROR(reader.Size("_sliding_window_pattern", &pattern));
  FB_RETURN_IF_ERROR(reader.Size("sliding_window_pattern", &pattern));
  for (int64_t i = 0; i < layers; ++i) sliding.push_back((i + 1) % pattern != 0);
  return sliding;
}

}  // namespace

Result<Gemma3Config> ParseGemma3Config(const std::string& config_json) {
  FB_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse(config_json, "Gemma 3"));
  FB_RETURN_IF_ERROR(reader.ExpectString("hidden_activation", {"gelu_pytorch_tanh"}));
  FB_RETURN_IF_ERROR(reader.ExpectFalse({"attention_bias", "use_bidirectional_attention"}));
  FB_RETURN_IF_ERROR(reader.ExpectAbsent({"final_logit_softcapping"}));
  Gemma3Config config;
  FB_ASSIGN_OR_RETURN(config.base, reader.Base("Gemma3ForCausalLM", /*tied=*/true));
  if (!reader.Has("rope_theta")) config.base.rope_theta = 1e6;
  FB_ASSIGN_OR_RETURN(config.rope_scaling, reader.Rope(&config.base, "full_attention"));
  FB_RETURN_IF_ERROR(reader.Positive("rope_local_base_freq", &config.local_theta));
  FB_ASSIGN_OR_RETURN(config.local_scaling,
                      reader.LocalRope("sliding_attention", config.base, &config.local_theta));
  FB_RETURN_IF_ERROR(reader.Positive("query_pre_attn_scalar", &config.query_scalar));
  FB_RETURN_IF_ERROR(reader.Positive("attn_logit_softcapping", &config.softcap));
  config.window = 4096;
  FB_RETURN_IF_ERROR(reader.Size("sliding_window", &config.window));
  FB_ASSIGN_OR_RETURN(config.sliding, ReadSlidingLayers(reader, config.base.layers));
  return config;
}

}  // namespace forebay::models
