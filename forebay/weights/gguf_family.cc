#include "forebay/weights/gguf_family.h"

#include <fmt/core.h>

#include <array>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"

namespace forebay::weights {
namespace {

using Name = GgufLayerName;

constexpr Name kLlama[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

constexpr Name kQwen3[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

// "*": the number of the expert.
constexpr Name kQwen3Moe[] = {{"attn_norm", "input_layernorm"},
                              {"attn_q", "self_attn.q_proj"},
                              {"attn_k", "self_attn.k_proj"},
                              {"attn_v", "self_attn.v_proj"},
                              {"attn_q_norm", "self_attn.q_norm"},
                              {"attn_k_norm", "self_attn.k_norm"},
                              {"attn_output", "self_attn.o_proj"},
                              {"ffn_norm", "post_attention_layernorm"},
                              {"ffn_gate_inp", "mlp.gate"},
                              {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
                              {"ffn_up_exps", "mlp.experts.*.up_proj"},
                              {"ffn_down_exps", "mlp.experts.*.down_proj"}};

constexpr Name kGemma3[] = {{"attn_norm", "input_layernorm"},
                            {"attn_q", "self_attn.q_proj"},
                            {"attn_k", "self_attn.k_proj"},
                            {"attn_v", "self_attn.v_proj"},
                            {"attn_q_norm", "self_attn.q_norm"},
                            {"attn_k_norm", "self_attn.k_norm"},
                            {"attn_output", "self_attn.o_proj"},
                            {"post_attention_norm", "post_attention_layernorm"},
                            {"ffn_norm", "pre_feedforward_layernorm"},
                            {"ffn_gate", "mlp.gate_proj"},
                            {"ffn_up", "mlp.up_proj"},
                            {"ffn_down", "mlp.down_proj"},
                            {"post_ffw_norm", "post_feedforward_layernorm"}};

constexpr std::array<GgufFamily, 5> kFamilies = {{{.architecture = "llama",
                                                   .hugging_face = "LlamaForCausalLM",
                                                   .model_type = "llama",
                                                   .layer_names = kLlama,
                                                   .interleaved = true,
                                                   .rms_eps = 1e-5,
                                                   .rope_theta = 1e4},
                                                  {.architecture = "qwen2",
                                                   .hugging_face = "Qwen2ForCausalLM",
                                                   .model_type = "qwen2",
                                                   .layer_names = kLlama,
                                                   .rope_theta = 1e4},
                                                  {.architecture = "qwen3",
                                                   .hugging_face = "Qwen3ForCausalLM",
                                                   .model_type = "qwen3",
                                                   .layer_names = kQwen3},
                                                  {.architecture = "qwen3moe",
                                                   .hugging_face = "Qwen3MoeForCausalLM",
                                                   .model_type = "qwen3_moe",
                                                   .layer_names = kQwen3Moe},
                                                  {.architecture = "gemma3",
                                                   .hugging_face = "Gemma3ForCausalLM",
                                                   .model_type = "gemma3_text",
                                                   .layer_names = kGemma3,
                                                   .norms_plus_one = true}}};

}  // namespace

Result<GgufFamily> GgufFamilyOf(const GgufFile& file) {
  FB_ASSIGN_OR_RETURN(const std::string_view architecture, file.String("general.architecture"));
  std::string known;
  for (const GgufFamily& family : kFamilies) {
    if (family.architecture == architecture) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return InvalidArgument(
      fmt::format("the GGUF architecture {} is not supported ({} are): use the Hugging Face folder "
                  "of the model",
                  architecture.substr(0, 80), known));
}

}  // namespace forebay::weights
