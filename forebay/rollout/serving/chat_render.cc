#include "forebay/rollout/serving/chat_render.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/base/text.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/plain_tools.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout {
namespace serving {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

ChatText ChatTextOf(const ApiRequest& request) {
  return {.messages_json = request.messages_json,
          .tools_json = request.tools_json,
          .variables_json = request.template_variables_json,
          .add_generation_prompt = request.add_generation_prompt,
          .continue_final_message = request.continue_final_message};
}

Result<std::string> RenderChat(const ServedModel& model, const ChatText& chat) {
  std::string messages_json(chat.messages_json);
  std::string tools_json(chat.tools_json);
  if (MentionsTools(messages_json, tools_json) && !KnowsTools(model)) {
    messages_json = WithPlainTools(messages_json, tools_json);
    tools_json.clear();
  }
  FB_ASSIGN_OR_RETURN(
      std::string text,
      model.chat->RenderJson(messages_json, {.add_generation_prompt = chat.add_generation_prompt,
                                             .tools_json = tools_json,
                                             .bos_token = model.bos_token,
                                             .eos_token = model.eos_token,
                                             .variables_json = std::string(chat.variables_json)}));
  if (!chat.continue_final_message) return text;
  const Json messages = Json::parse(messages_json);
  const std::string content = messages.back()["content"].get<std::string>();
  // Templates trim contents.
  const std::string_view written = Trim(content);
  const size_t at = written.empty() ? std::string::npos : text.rfind(written);
  if (at == std::string::npos) {
    return InvalidArgument(
        "the last message cannot be continued: the chat template does not show its content as it "
        "is");
  }
  const size_t end =
      text.compare(at, content.size(), content) == 0 ? content.size() : written.size();
  return text.substr(0, at + end);
}

}  // namespace serving

bool KnowsTools(const ServedModel& model) {
  if (model.chat == nullptr) return false;
  constexpr const char* kTools =
      R"([{"type": "function", "function": {"name": "nameofthetool", "description": "a tool", )"
      R"("parameters": {"type": "object", "properties": {}}}}])";
  const Result<std::string> text = model.chat->RenderJson(R"([{"role": "user", "content": "go"}])",
                                                          {.add_generation_prompt = true,
                                                           .tools_json = kTools,
                                                           .bos_token = model.bos_token,
                                                           .eos_token = model.eos_token});
  // A template that fails here has its reasons, which whoever asks it something hears.
  return !text.ok() || text->find("nameofthetool") != std::string::npos;
}

}  // namespace forebay::rollout
