#include "forebay/weights/weights_testing.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

constexpr size_t kAlignment = 32;

// The file's numbers of the value types used here.
enum ValueType : uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9
};

void Pad(std::string* text) {
  text->append((kAlignment - text->size() % kAlignment) % kAlignment, '\0');
}

// The rows of one head as llama.cpp orders them: row i of the first half beside row i of the
// second.
std::vector<float> Interleave(std::span<const float> from, size_t heads, size_t head_dim) {
  const size_t row = from.size() / (heads * head_dim);
  std::vector<float> to;
  for (size_t head = 0; head < heads; ++head) {
    for (size_t pair = 0; pair < head_dim / 2; ++pair) {
      for (size_t half = 0; half < 2; ++half) {
        const auto* first = from.data() + (head * head_dim + half * head_dim / 2 + pair) * row;
        to.insert(to.end(), first, first + row);
      }
    }
  }
  return to;
}

}  // namespace

TestFolder::TestFolder() {
  std::string name = testing::TempDir() + "forebay_weights_XXXXXX";
  FB_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a folder for a test");
  path_ = name;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

HostTensor FloatTensor(std::vector<int64_t> dims, const std::vector<float>& values) {
  std::span<std::byte> bytes;
  HostTensor tensor =
      HostTensor::Allocate({.dtype = xla::DType::kF32, .dims = std::move(dims)}, &bytes);
  FB_CHECK(bytes.size() == values.size() * sizeof(float), "as many values as the shape has");
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return tensor;
}

std::string RawString(std::string_view text) {
  return Raw(uint64_t{text.size()}) + std::string(text);
}

void GgufBuilder::Raw(std::string_view key, uint32_t type, std::string_view value) {
  metadata_ += RawString(key) + weights::Raw(type) + std::string(value);
  ++keys_;
}

void GgufBuilder::Uint(std::string_view key, uint32_t value) {
  Raw(key, kUint32, weights::Raw(value));
}
void GgufBuilder::Float(std::string_view key, float value) {
  Raw(key, kFloat32, weights::Raw(value));
}
void GgufBuilder::String(std::string_view key, std::string_view value) {
  Raw(key, kString, RawString(value));
}

void GgufBuilder::Strings(std::string_view key, const std::vector<std::string>& values) {
  std::string raw = weights::Raw(uint32_t{kString}) + weights::Raw(uint64_t{values.size()});
  for (const std::string& value : values) raw += RawString(value);
  Raw(key, kArray, raw);
}

void GgufBuilder::Ints(std::string_view key, const std::vector<int32_t>& values) {
  std::string raw = weights::Raw(uint32_t{kInt32}) + weights::Raw(uint64_t{values.size()});
  for (const int32_t value : values) raw += weights::Raw(value);
  Raw(key, kArray, raw);
}

void GgufBuilder::Floats(std::string_view key, const std::vector<float>& values) {
  std::string raw = weights::Raw(uint32_t{kFloat32}) + weights::Raw(uint64_t{values.size()});
  for (const float value : values) raw += weights::Raw(value);
  Raw(key, kArray, raw);
}

void GgufBuilder::Bool(std::string_view key, bool value) {
  Raw(key, kBool, weights::Raw(static_cast<uint8_t>(value ? 1 : 0)));
}

void GgufBuilder::RawTensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
                            uint64_t offset, std::string_view bytes) {
  tensors_ += RawString(name) + weights::Raw(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) tensors_ += weights::Raw(dim);
  tensors_ += weights::Raw(type) + weights::Raw(offset);
  ++tensor_count_;
  data_ += bytes;
  Pad(&data_);
}

void GgufBuilder::Tensor(std::string_view name, GgmlType type, const std::vector<int64_t>& dims,
                         std::string_view bytes) {
  RawTensor(name, static_cast<uint32_t>(type), {dims.rbegin(), dims.rend()}, data_.size(), bytes);
}

void GgufBuilder::FloatTensor(std::string_view name, const std::vector<int64_t>& dims,
                              std::span<const float> values) {
  Tensor(name, GgmlType::kF32, dims,
         {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

std::string GgufBuilder::Build(uint32_t version) const {
  std::string file = "GGUF" + weights::Raw(version) + weights::Raw(tensor_count_) +
                     weights::Raw(keys_) + metadata_ + tensors_;
  Pad(&file);
  return file + data_;
}

GgufBuilder GgufBuilder::ParityLlama(const TensorMap& hugging_face) {
  GgufBuilder builder;
  builder.String("general.architecture", "llama");
  builder.Uint("llama.block_count", 3);
  builder.Uint("llama.context_length", 256);
  builder.Uint("llama.embedding_length", 64);
  builder.Uint("llama.feed_forward_length", 160);
  builder.Uint("llama.attention.head_count", 4);
  builder.Uint("llama.attention.head_count_kv", 2);
  builder.Float("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  builder.Uint("tokenizer.ggml.bos_token_id", 1);
  builder.Uint("tokenizer.ggml.eos_token_id", 2);
  const std::vector<std::pair<std::string, std::string>> parts = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  const auto add = [&](const std::string& gguf, const std::string& name, size_t interleaved_heads) {
    const HostTensor& tensor = hugging_face.at(name);
    const auto values = tensor.as<float>();
    if (interleaved_heads == 0) return builder.FloatTensor(gguf, tensor.shape().dims, values);
    builder.FloatTensor(gguf, tensor.shape().dims, Interleave(values, interleaved_heads, 16));
  };
  add("token_embd.weight", "model.embed_tokens.weight", 0);
  add("output_norm.weight", "model.norm.weight", 0);
  for (int layer = 0; layer < 3; ++layer) {
    for (const auto& [gguf, name] : parts) {
      add(fmt::format("blk.{}.{}.weight", layer, gguf),
          fmt::format("model.layers.{}.{}.weight", layer, name),
          gguf == "attn_q"   ? 4
          : gguf == "attn_k" ? 2
                             : 0);
    }
  }
  return builder;
}

}  // namespace forebay::weights
