#include "forebay/weights/tiny_model.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "forebay/weights/model_files.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kChatTemplate =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// UTF-8 of a code point below 0x800.
std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0U | (code_point >> 6U)),
          static_cast<char>(0x80U | (code_point & 0x3fU))};
}

// Byte-level BPE writes each byte as one visible character: itself where Latin-1 has one, else the
// next from U+0100 on.
Json ByteVocabulary() {
  Json vocabulary = Json::object();
  uint32_t next_substitute = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool visible =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    vocabulary[Utf8(visible ? byte : next_substitute++)] = byte;
  }
  return vocabulary;
}

Json AddedToken(int32_t id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json TokenizerJson() {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array({AddedToken(kTinyEndOfText, "<|endoftext|>"),
                                        AddedToken(kTinyStart, "<|im_start|>"),
                                        AddedToken(kTinyEnd, "<|im_end|>")})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", ByteVocabulary()},
            {"merges", Json::array()}}}};
}

Json TokenIds() {
  return {
      {"bos_token_id", kTinyStart}, {"eos_token_id", kTinyEnd}, {"pad_token_id", kTinyEndOfText}};
}

}  // namespace

ModelFiles TinyModelFiles(const TinyModelOptions& options) {
  Json config = {{"architectures", Json::array({"LlamaForCausalLM"})},
                 {"model_type", "llama"},
                 {"vocab_size", kTinyVocabSize},
                 {"hidden_size", options.width},
                 {"intermediate_size", options.ff_width},
                 {"num_hidden_layers", options.layers},
                 {"num_attention_heads", options.heads},
                 {"num_key_value_heads", options.kv_heads},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", options.context_tokens},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 1e4},
                 {"rope_scaling", nullptr},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"attention_dropout", 0.0},
                 {"tie_word_embeddings", true},
                 {"initializer_range", 0.02},
                 {"use_cache", true},
                 {"dtype", "float32"}};
  config.update(TokenIds());
  ModelFiles files;
  files.config_json = config.dump(2);
  files.tokenizer_json = TokenizerJson().dump();
  files.chat_template = kChatTemplate;
  files.generation_config_json = TokenIds().dump(2);
  return files;
}

}  // namespace forebay::weights
