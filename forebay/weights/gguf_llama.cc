#include "forebay/weights/gguf_llama.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/dequantize.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::ordered_json;

// No size in a config is near this; products of two stay within int64.
constexpr uint64_t kSizeMax = uint64_t{1} << 30;

struct Sizes {
  int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, ff_width = 0, context = 0;
};

Result<int64_t> Size(const GgufFile& file, std::string_view key) {
  FB_ASSIGN_OR_RETURN(const uint64_t size, file.Unsigned(key));
  if (size == 0 || size > kSizeMax) {
    return DataLoss(fmt::format("the GGUF metadata {} is {}: not a size", key, size));
  }
  return static_cast<int64_t>(size);
}

Result<int64_t> SizeOr(const GgufFile& file, std::string_view key, int64_t fallback) {
  if (!file.Has(key)) return fallback;
  return Size(file, key);
}

Result<Sizes> ReadSizes(const GgufFile& file) {
  Sizes sizes;
  FB_ASSIGN_OR_RETURN(sizes.layers, Size(file, "llama.block_count"));
  FB_ASSIGN_OR_RETURN(sizes.width, Size(file, "llama.embedding_length"));
  FB_ASSIGN_OR_RETURN(sizes.ff_width, Size(file, "llama.feed_forward_length"));
  FB_ASSIGN_OR_RETURN(sizes.context, Size(file, "llama.context_length"));
  FB_ASSIGN_OR_RETURN(sizes.heads, Size(file, "llama.attention.head_count"));
  FB_ASSIGN_OR_RETURN(sizes.kv_heads, SizeOr(file, "llama.attention.head_count_kv", sizes.heads));
  FB_ASSIGN_OR_RETURN(sizes.head_dim, SizeOr(file, "llama.attention.key_length",
                                             std::max<int64_t>(1, sizes.width / sizes.heads)));
  FB_ASSIGN_OR_RETURN(const int64_t rope_dims,
                      SizeOr(file, "llama.rope.dimension_count", sizes.head_dim));
  if (sizes.heads % sizes.kv_heads != 0 || sizes.head_dim % 2 != 0) {
    return DataLoss(
        fmt::format("the GGUF metadata has {} heads of size {} and {} key/value heads: corrupt",
                    sizes.heads, sizes.head_dim, sizes.kv_heads));
  }
  if (rope_dims != sizes.head_dim) {
    return InvalidArgument(
        fmt::format("llama.rope.dimension_count is {}, but heads have {} dimensions: "
                    "partial rotary embeddings are not supported",
                    rope_dims, sizes.head_dim));
  }
  return sizes;
}

Status CheckSupported(const GgufFile& file) {
  if (file.Has("llama.expert_count")) {
    FB_ASSIGN_OR_RETURN(const uint64_t experts, file.Unsigned("llama.expert_count"));
    if (experts > 0)
      return InvalidArgument("a GGUF llama with experts (llama.expert_count) is not supported");
  }
  if (file.Has("llama.rope.scaling.type")) {
    FB_ASSIGN_OR_RETURN(const std::string_view scaling, file.String("llama.rope.scaling.type"));
    if (scaling != "none") {
      return InvalidArgument(fmt::format("llama.rope.scaling.type {} is not supported", scaling));
    }
  }
  if (file.tensors().contains("rope_freqs.weight")) {
    return InvalidArgument(
        "the GGUF file scales its rotary frequencies (rope_freqs.weight, as Llama 3.1 does), "
        "which is not supported: use the Hugging Face folder of the model");
  }
  return OkStatus();
}

// The shortest text that gives the same float: the file's f32 1e-5 is written as 1e-05, not
// as 9.99999974e-06.
double Shortest(double value) {
  std::array<char, 64> text{};
  const auto [end, error] = std::to_chars(text.begin(), text.end(), static_cast<float>(value));
  double shortest = value;
  std::from_chars(text.begin(), end, shortest);
  return shortest;
}

Result<double> PositiveOr(const GgufFile& file, std::string_view key, double fallback) {
  if (!file.Has(key)) return fallback;
  FB_ASSIGN_OR_RETURN(const double value, file.Float(key));
  if (!std::isfinite(value) || value <= 0) {
    return DataLoss(fmt::format("the GGUF metadata {} is {}: not a positive number", key, value));
  }
  return Shortest(value);
}

Result<int64_t> VocabSize(const GgufFile& file) {
  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding == file.tensors().end() || embedding->second.dims.size() != 2) {
    return DataLoss("the GGUF file has no matrix token_embd.weight");
  }
  return embedding->second.dims[0];
}

// Adds bos, eos and pad as far as the file names them.
Status AddTokenIds(const GgufFile& file, Json* json) {
  constexpr std::array<std::pair<std::string_view, const char*>, 3> kIds = {
      {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
       {"tokenizer.ggml.eos_token_id", "eos_token_id"},
       {"tokenizer.ggml.padding_token_id", "pad_token_id"}}};
  FB_ASSIGN_OR_RETURN(const int64_t vocab_size, VocabSize(file));
  for (const auto& [key, name] : kIds) {
    if (!file.Has(key)) continue;
    FB_ASSIGN_OR_RETURN(const uint64_t id, file.Unsigned(key));
    if (id >= static_cast<uint64_t>(vocab_size)) {
      return DataLoss(fmt::format("the GGUF metadata {} is {}, outside the vocabulary of {}", key,
                                  id, vocab_size));
    }
    (*json)[name] = id;
  }
  return OkStatus();
}

// A tensor's name as Hugging Face has it, and by how many heads its rows are interleaved (0: not at
// all).
struct Target {
  std::string name;
  int64_t interleaved_heads = 0;
};

struct LayerName {
  std::string_view gguf, hugging_face;
};
constexpr std::array<LayerName, 9> kLayerNames = {{{"attn_norm", "input_layernorm"},
                                                   {"attn_q", "self_attn.q_proj"},
                                                   {"attn_k", "self_attn.k_proj"},
                                                   {"attn_v", "self_attn.v_proj"},
                                                   {"attn_output", "self_attn.o_proj"},
                                                   {"ffn_norm", "post_attention_layernorm"},
                                                   {"ffn_gate", "mlp.gate_proj"},
                                                   {"ffn_up", "mlp.up_proj"},
                                                   {"ffn_down", "mlp.down_proj"}}};

std::optional<Target> TargetOf(std::string_view name, const Sizes& sizes) {
  if (name == "token_embd.weight") return Target{.name = "model.embed_tokens.weight"};
  if (name == "output_norm.weight") return Target{.name = "model.norm.weight"};
  if (name == "output.weight") return Target{.name = "lm_head.weight"};

  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  const size_t dot = name.rfind('.');
  if (error != std::errc() || layer < 0 || layer >= sizes.layers || !name.starts_with('.') ||
      dot == 0) {
    return std::nullopt;
  }
  const std::string_view part = name.substr(1, dot - 1);
  const std::string_view kind = name.substr(dot + 1);
  if (kind != "weight" && kind != "bias") return std::nullopt;
  for (const LayerName& known : kLayerNames) {
    if (part != known.gguf) continue;
    const int64_t heads = part == "attn_q" ? sizes.heads : part == "attn_k" ? sizes.kv_heads : 0;
    return Target{.name = fmt::format("model.layers.{}.{}.{}", layer, known.hugging_face, kind),
                  .interleaved_heads = heads};
  }
  return std::nullopt;
}

// Within a head, llama.cpp keeps the two halves of each rotated pair in neighbouring rows; Hugging
// Face keeps first all first halves, then all second ones.
void UndoInterleaving(std::span<const float> from, int64_t heads, int64_t head_dim, int64_t row,
                      std::span<float> to) {
  const int64_t half = head_dim / 2;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t source = head * head_dim + (i % half) * 2 + i / half;
      const int64_t target = head * head_dim + i;
      std::copy_n(from.begin() + source * row, row, to.begin() + target * row);
    }
  }
}

std::span<float> AsFloats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

Result<HostTensor> Convert(std::string_view name, const GgufTensor& tensor, const Target& target,
                           const Sizes& sizes) {
  const xla::Shape shape{.dtype = xla::DType::kF32, .dims = tensor.dims};
  std::span<std::byte> bytes;
  HostTensor result = HostTensor::Allocate(shape, &bytes);
  if (target.interleaved_heads == 0) {
    Dequantize(tensor.type, tensor.bytes, AsFloats(bytes));
    return result;
  }
  const int64_t rows = target.interleaved_heads * sizes.head_dim;
  if (tensor.dims[0] != rows) {
    return DataLoss(fmt::format("tensor {} has the shape {}, but {} heads of size {} have {} rows",
                                name, shape.ToString(), target.interleaved_heads, sizes.head_dim,
                                rows));
  }
  std::vector<float> interleaved(static_cast<size_t>(shape.elements()));
  Dequantize(tensor.type, tensor.bytes, interleaved);
  UndoInterleaving(interleaved, target.interleaved_heads, sizes.head_dim, shape.elements() / rows,
                   AsFloats(bytes));
  return result;
}

}  // namespace

Result<std::string> LlamaConfigJson(const GgufFile& file) {
  FB_RETURN_IF_ERROR(CheckSupported(file));
  FB_ASSIGN_OR_RETURN(const Sizes sizes, ReadSizes(file));
  FB_ASSIGN_OR_RETURN(const int64_t vocab_size, VocabSize(file));
  FB_ASSIGN_OR_RETURN(const double rms_eps,
                      PositiveOr(file, "llama.attention.layer_norm_rms_epsilon", 1e-5));
  FB_ASSIGN_OR_RETURN(const double rope_theta, PositiveOr(file, "llama.rope.freq_base", 1e4));
  Json config = {{"architectures", Json::array({"LlamaForCausalLM"})},
                 {"model_type", "llama"},
                 {"vocab_size", vocab_size},
                 {"hidden_size", sizes.width},
                 {"intermediate_size", sizes.ff_width},
                 {"num_hidden_layers", sizes.layers},
                 {"num_attention_heads", sizes.heads},
                 {"num_key_value_heads", sizes.kv_heads},
                 {"head_dim", sizes.head_dim},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", sizes.context},
                 {"rms_norm_eps", rms_eps},
                 {"rope_theta", rope_theta},
                 {"rope_scaling", nullptr},
                 {"attention_bias", file.tensors().contains("blk.0.attn_q.bias")},
                 {"mlp_bias", file.tensors().contains("blk.0.ffn_up.bias")},
                 {"attention_dropout", 0.0},
                 {"tie_word_embeddings", !file.tensors().contains("output.weight")},
                 {"initializer_range", 0.02},
                 {"use_cache", true},
                 {"dtype", "float32"}};
  FB_RETURN_IF_ERROR(AddTokenIds(file, &config));
  return config.dump(2);
}

Result<std::string> LlamaGenerationConfigJson(const GgufFile& file) {
  Json config = Json::object();
  FB_RETURN_IF_ERROR(AddTokenIds(file, &config));
  return config.dump(2);
}

Result<TensorMap> LlamaTensors(const GgufFile& file) {
  FB_RETURN_IF_ERROR(CheckSupported(file));
  FB_ASSIGN_OR_RETURN(const Sizes sizes, ReadSizes(file));
  TensorMap tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    const auto target = TargetOf(name, sizes);
    if (!target) {
      return InvalidArgument(fmt::format(
          "the GGUF tensor {} does not belong to a llama of {} layers", name, sizes.layers));
    }
    FB_ASSIGN_OR_RETURN(HostTensor converted, Convert(name, tensor, *target, sizes));
    if (!tensors.emplace(target->name, std::move(converted)).second) {
      return DataLoss(fmt::format("two GGUF tensors are {}: corrupt", target->name));
    }
  }
  return tensors;
}

}  // namespace forebay::weights
