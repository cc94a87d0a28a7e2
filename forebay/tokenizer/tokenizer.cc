#include "forebay/tokenizer/tokenizer.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/ffi/tokenizer_ffi.h"

namespace forebay::tokenizer {

struct Tokenizer::Impl {
  FfiTokenizer* handle = nullptr;
  ~Impl() { forebay_tokenizer_free(handle); }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json) {
  auto impl = std::make_unique<Impl>();
  OwnedBytes error;
  if (!forebay_tokenizer_new(json.data(), json.size(), &impl->handle, error.out())) {
    return InvalidArgument(fmt::format("tokenizer.json is not usable: {}",
                                       std::string_view(error.data(), error.size())));
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(forebay_tokenizer_vocab_size(impl_->handle));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text) const {
  FfiIds ids;
  OwnedBytes error;
  if (!forebay_tokenizer_encode(impl_->handle, text.data(), text.size(), &ids, error.out())) {
    return InvalidArgument(
        fmt::format("cannot encode: {}", std::string_view(error.data(), error.size())));
  }
  std::vector<int32_t> result(ids.data, ids.data + ids.size);
  forebay_ids_free(ids);
  return result;
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) {
      return InvalidArgument(
          fmt::format("cannot decode: token id {} at position {} is negative", ids[i], i));
    }
  }
  OwnedBytes text;
  OwnedBytes error;
  if (!forebay_tokenizer_decode(impl_->handle, reinterpret_cast<const uint32_t*>(ids.data()),
                                ids.size(), skip_special, text.out(), error.out())) {
    return InvalidArgument(
        fmt::format("cannot decode: {}", std::string_view(error.data(), error.size())));
  }
  return std::string(text.data(), text.size());
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const int64_t id = forebay_tokenizer_token_id(impl_->handle, token.data(), token.size());
  if (id < 0) return std::nullopt;
  return static_cast<int32_t>(id);
}

}  // namespace forebay::tokenizer
