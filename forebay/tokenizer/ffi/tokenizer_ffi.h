// The C ABI of the Rust library in this folder. Private to the tokenizer room.
//
// Every function that can fail gives false and fills `error`; results and errors are owned by Rust
// and go back through the _free functions. Handles are immutable and may be used from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay::tokenizer {

struct FfiTokenizer;
struct FfiTemplate;

struct FfiBytes {
  uint8_t* data = nullptr;
  size_t size = 0;
};

struct FfiIds {
  uint32_t* data = nullptr;
  size_t size = 0;
};

extern "C" {
void forebay_bytes_free(FfiBytes bytes);
void forebay_ids_free(FfiIds ids);

bool forebay_tokenizer_new(const char* json, size_t json_size, FfiTokenizer** out, FfiBytes* error);
void forebay_tokenizer_free(FfiTokenizer* tokenizer);
uint64_t forebay_tokenizer_vocab_size(const FfiTokenizer* tokenizer);
// -1: no such token.
int64_t forebay_tokenizer_token_id(const FfiTokenizer* tokenizer, const char* token,
                                   size_t token_size);
bool forebay_tokenizer_encode(const FfiTokenizer* tokenizer, const char* input, size_t input_size,
                              FfiIds* out, FfiBytes* error);
bool forebay_tokenizer_decode(const FfiTokenizer* tokenizer, const uint32_t* ids, size_t ids_size,
                              bool skip_special, FfiBytes* out, FfiBytes* error);

bool forebay_template_new(const char* source, size_t source_size, FfiTemplate** out,
                          FfiBytes* error);
void forebay_template_free(FfiTemplate* chat_template);
// `context` is a JSON object with the template's variables.
bool forebay_template_render(const FfiTemplate* chat_template, const char* context,
                             size_t context_size, int64_t now_unix_s, FfiBytes* out,
                             FfiBytes* error);
}  // extern "C"

// Takes the bytes and gives them back to Rust.
class OwnedBytes {
 public:
  OwnedBytes() = default;
  ~OwnedBytes() { forebay_bytes_free(bytes_); }
  OwnedBytes(const OwnedBytes&) = delete;
  OwnedBytes& operator=(const OwnedBytes&) = delete;

  FfiBytes* out() { return &bytes_; }
  const char* data() const { return reinterpret_cast<const char*>(bytes_.data); }
  size_t size() const { return bytes_.size; }

 private:
  FfiBytes bytes_;
};

}  // namespace forebay::tokenizer
