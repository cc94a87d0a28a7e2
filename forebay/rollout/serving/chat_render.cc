#include "forebay/rollout/serving/chat_render.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

Result<std::string> RenderChat(const ServedModel& model, const ChatText& chat) {
  FB_ASSIGN_OR_RETURN(std::string text,
                      model.chat->RenderJson(chat.messages_json,
                                             {.add_generation_prompt = chat.add_generation_prompt,
                                              .tools_json = std::string(chat.tools_json),
                                              .bos_token = model.bos_token,
                                              .eos_token = model.eos_token}));
  if (!chat.continue_final_message) return text;
  const Json messages = Json::parse(chat.messages_json);
  const std::string content = messages.back()["content"].get<std::string>();
  // Templates trim contents.
  const std::string_view written = Trimmed(content);
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

}  // namespace forebay::rollout::serving
