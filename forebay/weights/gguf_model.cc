#include "forebay/weights/gguf_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
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
#include "forebay/weights/gguf_family.h"
#include "forebay/weights/gguf_rope.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::ordered_json;

// No size in a config is near this; products of two stay within int64.
constexpr uint64_t kSizeMax = uint64_t{1} << 30;

struct Sizes {
  int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, ff_width = 0, context = 0;
  int64_t experts = 0;
};

// "llama.block_count" of "block_count".
std::string Key(const GgufFamily& family, std::string_view key) {
  return fmt::format("{}.{}", family.architecture, key);
}

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

Result<Sizes> ReadSizes(const GgufFile& file, const GgufFamily& family) {
  const auto key = [&](std::string_view name) { return Key(family, name); };
  Sizes sizes;
  FB_ASSIGN_OR_RETURN(sizes.layers, Size(file, key("block_count")));
  FB_ASSIGN_OR_RETURN(sizes.width, Size(file, key("embedding_length")));
  FB_ASSIGN_OR_RETURN(sizes.ff_width, Size(file, key("feed_forward_length")));
  FB_ASSIGN_OR_RETURN(sizes.context, Size(file, key("context_length")));
  FB_ASSIGN_OR_RETURN(sizes.heads, Size(file, key("attention.head_count")));
  FB_ASSIGN_OR_RETURN(sizes.kv_heads, SizeOr(file, key("attention.head_count_kv"), sizes.heads));
  FB_ASSIGN_OR_RETURN(sizes.head_dim, SizeOr(file, key("attention.key_length"),
                                             std::max<int64_t>(1, sizes.width / sizes.heads)));
  FB_ASSIGN_OR_RETURN(const int64_t rope_dims,
                      SizeOr(file, key("rope.dimension_count"), sizes.head_dim));
  if (sizes.heads % sizes.kv_heads != 0 || sizes.head_dim % 2 != 0) {
    return DataLoss(
        fmt::format("the GGUF metadata has {} heads of size {} and {} key/value heads: corrupt",
                    sizes.heads, sizes.head_dim, sizes.kv_heads));
  }
  if (rope_dims != sizes.head_dim) {
    return InvalidArgument(fmt::format(
        "{} is {}, but heads have {} dimensions: partial rotary embeddings are not supported",
        key("rope.dimension_count"), rope_dims, sizes.head_dim));
  }
  if (family.architecture == "qwen3moe") {
    FB_ASSIGN_OR_RETURN(sizes.experts, Size(file, key("expert_count")));
  }
  return sizes;
}

Status CheckSupported(const GgufFile& file, const GgufFamily& family) {
  const std::string expert_key = Key(family, "expert_count");
  if (family.architecture != "qwen3moe" && file.Has(expert_key)) {
    FB_ASSIGN_OR_RETURN(const uint64_t experts, file.Unsigned(expert_key));
    if (experts > 0) {
      return InvalidArgument(fmt::format("a GGUF {} with experts ({}) is not supported",
                                         family.architecture, expert_key));
    }
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

// A tensor's name as Hugging Face has it ("*" for the number of an expert), by how many heads its
// rows are interleaved (0: not at all), and what llama.cpp has added to it.
struct Target {
  std::string name;
  int64_t interleaved_heads = 0;
  float added = 0;
};

std::optional<Target> TargetOf(std::string_view name, const Sizes& sizes,
                               const GgufFamily& family) {
  const float norm_added = family.norms_plus_one ? 1 : 0;
  if (name == "token_embd.weight") return Target{.name = "model.embed_tokens.weight"};
  if (name == "output_norm.weight") {
    return Target{.name = "model.norm.weight", .added = norm_added};
  }
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
  for (const GgufLayerName& known : family.layer_names) {
    if (part != known.gguf) continue;
    const int64_t heads = part == "attn_q" ? sizes.heads : part == "attn_k" ? sizes.kv_heads : 0;
    return Target{.name = fmt::format("model.layers.{}.{}.{}", layer, known.hugging_face, kind),
                  .interleaved_heads = family.interleaved ? heads : 0,
                  .added = part.ends_with("norm") ? norm_added : 0};
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
    for (float& value : AsFloats(bytes)) value -= target.added;
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

// Adds [experts, ...] under the names of its experts.
Status AddExperts(std::string_view name, const HostTensor& all, const Target& target,
                  const Sizes& sizes, TensorMap* tensors) {
  if (all.shape().rank() < 2 || all.shape().dims[0] != sizes.experts) {
    return DataLoss(fmt::format("tensor {} has the shape {}, but the model has {} experts", name,
                                all.shape().ToString(), sizes.experts));
  }
  const xla::Shape shape{all.shape().dtype, {all.shape().dims.begin() + 1, all.shape().dims.end()}};
  const auto bytes = static_cast<size_t>(shape.bytes());
  const auto owner = std::make_shared<HostTensor>(all);
  const size_t star = target.name.find('*');
  for (int64_t e = 0; e < sizes.experts; ++e) {
    const std::string one =
        target.name.substr(0, star) + std::to_string(e) + target.name.substr(star + 1);
    const HostTensor part(shape, all.bytes().subspan(static_cast<size_t>(e) * bytes, bytes), owner);
    if (!tensors->emplace(one, part).second) {
      return DataLoss(fmt::format("two GGUF tensors are {}: corrupt", one));
    }
  }
  return OkStatus();
}

Status AddExpertKeys(const GgufFile& file, const GgufFamily& family, const Sizes& sizes,
                     Json* config) {
  FB_ASSIGN_OR_RETURN(const int64_t used, Size(file, Key(family, "expert_used_count")));
  FB_ASSIGN_OR_RETURN(const int64_t ff, Size(file, Key(family, "expert_feed_forward_length")));
  (*config)["num_experts"] = sizes.experts;
  (*config)["num_experts_per_tok"] = used;
  (*config)["moe_intermediate_size"] = ff;
  (*config)["norm_topk_prob"] = true;
  (*config)["decoder_sparse_step"] = 1;
  (*config)["mlp_only_layers"] = Json::array();
  return OkStatus();
}

// llama.cpp has no keys for what is the same in all Gemma 3 models but the largest.
Status AddGemmaKeys(const GgufFile& file, const GgufFamily& family, const Sizes& sizes,
                    Json* config) {
  constexpr int64_t kLayersOf27B = 62;
  FB_ASSIGN_OR_RETURN(const int64_t window, Size(file, Key(family, "attention.sliding_window")));
  FB_ASSIGN_OR_RETURN(const int64_t pattern,
                      SizeOr(file, Key(family, "attention.sliding_window_pattern"), 6));
  FB_ASSIGN_OR_RETURN(const double local, PositiveOr(file, Key(family, "rope.freq_base_swa"), 1e4));
  config->erase("hidden_act");
  (*config)["hidden_activation"] = "gelu_pytorch_tanh";
  (*config)["sliding_window"] = window;
  (*config)["sliding_window_pattern"] = pattern;
  (*config)["rope_local_base_freq"] = local;
  (*config)["query_pre_attn_scalar"] =
      sizes.layers == kLayersOf27B ? sizes.width / sizes.heads : sizes.head_dim;
  return OkStatus();
}

Result<double> RopeTheta(const GgufFile& file, const GgufFamily& family) {
  return PositiveOr(file, Key(family, "rope.freq_base"), family.rope_theta);
}

Result<Json> RopeScaling(const GgufFile& file, const GgufFamily& family, const Sizes& sizes) {
  FB_ASSIGN_OR_RETURN(const double theta, RopeTheta(file, family));
  return GgufRopeScaling(file, family.architecture, sizes.head_dim, theta);
}

}  // namespace

Result<std::string> GgufConfigJson(const GgufFile& file) {
  FB_ASSIGN_OR_RETURN(const GgufFamily family, GgufFamilyOf(file));
  FB_RETURN_IF_ERROR(CheckSupported(file, family));
  FB_ASSIGN_OR_RETURN(const Sizes sizes, ReadSizes(file, family));
  FB_ASSIGN_OR_RETURN(const int64_t vocab_size, VocabSize(file));
  FB_ASSIGN_OR_RETURN(
      const double rms_eps,
      PositiveOr(file, Key(family, "attention.layer_norm_rms_epsilon"), family.rms_eps));
  FB_ASSIGN_OR_RETURN(const double rope_theta, RopeTheta(file, family));
  FB_ASSIGN_OR_RETURN(Json rope_scaling, RopeScaling(file, family, sizes));
  Json config = {{"architectures", Json::array({family.hugging_face})},
                 {"model_type", family.model_type},
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
                 {"rope_scaling", std::move(rope_scaling)},
                 {"attention_dropout", 0.0},
                 {"tie_word_embeddings", !file.tensors().contains("output.weight")},
                 {"initializer_range", 0.02},
                 {"use_cache", true},
                 {"dtype", "float32"}};
  // A qwen2 always has the first and never says so.
  if (family.architecture != "qwen2") {
    config["attention_bias"] = file.tensors().contains("blk.0.attn_q.bias");
  }
  if (family.architecture == "llama") {
    config["mlp_bias"] = file.tensors().contains("blk.0.ffn_up.bias");
  }
  if (sizes.experts > 0) FB_RETURN_IF_ERROR(AddExpertKeys(file, family, sizes, &config));
  if (family.architecture == "gemma3") {
    FB_RETURN_IF_ERROR(AddGemmaKeys(file, family, sizes, &config));
  }
  FB_RETURN_IF_ERROR(AddTokenIds(file, &config));
  return config.dump(2);
}

Result<std::string> GgufGenerationConfigJson(const GgufFile& file) {
  Json config = Json::object();
  FB_RETURN_IF_ERROR(AddTokenIds(file, &config));
  return config.dump(2);
}

Result<TensorMap> GgufTensors(const GgufFile& file) {
  FB_ASSIGN_OR_RETURN(const GgufFamily family, GgufFamilyOf(file));
  FB_RETURN_IF_ERROR(CheckSupported(file, family));
  FB_ASSIGN_OR_RETURN(const Sizes sizes, ReadSizes(file, family));
  FB_RETURN_IF_ERROR(RopeScaling(file, family, sizes).status());
  TensorMap tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name == kRopeDivisors) continue;  // in the config
    const auto target = TargetOf(name, sizes, family);
    if (!target) {
      return InvalidArgument(fmt::format("the GGUF tensor {} does not belong to a {} of {} layers",
                                         name, family.architecture, sizes.layers));
    }
    FB_ASSIGN_OR_RETURN(HostTensor converted, Convert(name, tensor, *target, sizes));
    if (target->name.find('*') != std::string::npos) {
      FB_RETURN_IF_ERROR(AddExperts(name, converted, *target, sizes, &tensors));
    } else if (!tensors.emplace(target->name, std::move(converted)).second) {
      return DataLoss(fmt::format("two GGUF tensors are {}: corrupt", target->name));
    }
  }
  return tensors;
}

}  // namespace forebay::weights
