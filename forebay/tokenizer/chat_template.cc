#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/tokenizer/ffi/tokenizer_ffi.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

struct ChatTemplate::Impl {
  FfiTemplate* handle = nullptr;
  ~Impl() { forebay_template_free(handle); }
  Result<std::string> Render(Json messages, const Options& options) const;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source) {
  auto impl = std::make_unique<Impl>();
  OwnedBytes error;
  if (!forebay_template_new(source.data(), source.size(), &impl->handle, error.out())) {
    return InvalidArgument(fmt::format("the chat template does not parse: {}",
                                       std::string_view(error.data(), error.size())));
  }
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

Result<std::string> ChatTemplate::Render(std::span<const Message> messages,
                                         const Options& options) const {
  Json list = Json::array();
  for (const Message& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return impl_->Render(std::move(list), options);
}

Result<std::string> ChatTemplate::RenderJson(std::string_view messages_json,
                                             const Options& options) const {
  Json list = Json::parse(messages_json, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return InvalidArgument("the messages are not a JSON array");
  return impl_->Render(std::move(list), options);
}

Result<std::string> ChatTemplate::Impl::Render(Json messages, const Options& options) const {
  Json context;
  context["messages"] = std::move(messages);
  context["add_generation_prompt"] = options.add_generation_prompt;
  context["bos_token"] = options.bos_token;
  context["eos_token"] = options.eos_token;
  // As transformers does: defined, but none, when not given.
  context["documents"] = nullptr;
  context["tools"] = nullptr;
  if (!options.variables_json.empty()) {
    const Json variables = Json::parse(options.variables_json, nullptr, /*allow_exceptions=*/false);
    if (!variables.is_object())
      return InvalidArgument("the variables of a chat template are not a JSON object");
    for (const auto& [name, value] : variables.items()) {
      if (IsReserved(name)) {
        return InvalidArgument(fmt::format("'{}' is no variable of the chat template's own", name));
      }
      context[name] = value;
    }
  }
  if (!options.tools_json.empty()) {
    Json tools = Json::parse(options.tools_json, nullptr, /*allow_exceptions=*/false);
    if (!tools.is_array())
      return InvalidArgument("the tools of a chat template are not a JSON array");
    context["tools"] = std::move(tools);
  }

  std::string context_text;
  try {
    context_text = context.dump();
  } catch (const Json::exception& e) {  // only invalid UTF-8 gets here
    return InvalidArgument(fmt::format("a chat message is not UTF-8: {}", e.what()));
  }
  OwnedBytes text;
  OwnedBytes error;
  if (!forebay_template_render(handle, context_text.data(), context_text.size(),
                               options.now_unix_s.value_or(WallMicros() / 1'000'000), text.out(),
                               error.out())) {
    return InvalidArgument(fmt::format("the chat template refuses these messages: {}",
                                       std::string_view(error.data(), error.size())));
  }
  return std::string(text.data(), text.size());
}

}  // namespace forebay::tokenizer
