// Tokenizer: text to token ids and back (Hugging Face tokenizers inside), and ChatTemplate:
// messages to text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::tokenizer {

// Immutable after creation; thread-safe.
class Tokenizer {
 public:
  // From the content of a tokenizer.json. kInvalidArgument with the library's reason.
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  int64_t vocab_size() const;  // added tokens included
  // Special tokens written in the text ("<|im_end|>") become their ids; none are added around it.
  // kInvalidArgument for text that is not UTF-8.
  Result<std::vector<int32_t>> Encode(std::string_view text) const;
  // Bytes that are no UTF-8 become U+FFFD; ids outside the vocabulary are kInvalidArgument.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special) const;
  // The id of a token by its exact text ("<|im_end|>"), if it has one.
  std::optional<int32_t> TokenId(std::string_view token) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Message {
  std::string role;  // system, user, assistant, tool
  std::string content;
  friend bool operator==(const Message&, const Message&) = default;
};

// A Jinja chat template, rendered as transformers does (trim_blocks, lstrip_blocks, Python
// methods).
class ChatTemplate {
 public:
  // kInvalidArgument with line and reason for a template that does not parse.
  static Result<std::unique_ptr<ChatTemplate>> Parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  struct Options {
    bool add_generation_prompt = false;
    std::string tools_json;  // a JSON array, or ""
    std::string bos_token, eos_token;
    // More variables of the template's own ("enable_thinking"): a JSON object, or "". Reserved
    // names are not among them.
    std::string variables_json;
    // What the template's strftime_now shows (in UTC); the system clock when not set.
    std::optional<int64_t> now_unix_s;
  };
  // Whether every template is given a variable or function of this name.
  static bool IsReserved(std::string_view name);

  // kInvalidArgument with the reason: the template raised it (raise_exception), failed on these
  // messages, or ran for too long; text that is not UTF-8; tools that are not a JSON array;
  // variables that are not a JSON object, or one of a reserved name.
  // Thread-safe.
  Result<std::string> Render(std::span<const Message> messages, const Options& options) const;
  // The same for messages with more to them (tool calls, names): a JSON array of objects, given to
  // the template as it is. It may be nested as deep as its caller allows.
  Result<std::string> RenderJson(std::string_view messages_json, const Options& options) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay::tokenizer
