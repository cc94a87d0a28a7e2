#include "forebay/env/subprocess/wire.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/env/environment.h"
#include "forebay/env/json.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;

Status Bad(std::string_view what) { return DataLoss(std::string(what)); }

Result<uint64_t> Unsigned(const Json& json, const char* key) {
  if (!json.is_number_unsigned())
    return Bad(fmt::format("'{}' must be a whole number of 0 or more", key));
  return json.get<uint64_t>();
}

Result<std::string> Text(const Json& json, const char* key, size_t bytes_max) {
  if (!json.is_string()) return Bad(fmt::format("'{}' must be a string", key));
  const auto& text = json.get_ref<const std::string&>();
  if (text.size() > bytes_max)
    return Bad(fmt::format("'{}' is longer than {} bytes", key, bytes_max));
  return text;
}

Result<std::vector<Message>> Messages(const Json& json) {
  if (!json.is_array()) return Bad("'messages' must be a list");
  if (json.size() > kMessagesMax)
    return Bad(fmt::format("'messages' has more than {} entries", kMessagesMax));
  std::vector<Message> messages;
  for (const Json& entry : json) {
    if (!entry.is_object())
      return Bad("each of 'messages' must be an object with 'role' and 'content'");
    const Json* role = Find(entry, "role");
    const Json* content = Find(entry, "content");
    if (role == nullptr || content == nullptr || !role->is_string() || !content->is_string()) {
      return Bad("each of 'messages' needs a string 'role' and a string 'content'");
    }
    Message message{role->get<std::string>(), content->get<std::string>()};
    if (message.role != "system" && message.role != "user" && message.role != "tool" &&
        message.role != "assistant") {
      return Bad(
          fmt::format("the role of a message must be system, user, tool or assistant, not '{:.40}'",
                      message.role));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

Result<std::map<std::string, double>> Rewards(const Json& json) {
  if (!json.is_object()) return Bad("'rewards' must be an object of numbers");
  if (json.size() > kRewardsMax)
    return Bad(fmt::format("'rewards' has more than {} components", kRewardsMax));
  std::map<std::string, double> rewards;
  for (const auto& [name, value] : json.items()) {
    if (name.empty() || name.size() > kNameBytesMax) {
      return Bad(fmt::format("a reward's name must have 1 to {} bytes", kNameBytesMax));
    }
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      return Bad(fmt::format("reward '{}' must be a finite number", name));
    }
    rewards.emplace(name, value.get<double>());
  }
  return rewards;
}

Result<StepResult> Answer(const Json& json) {
  StepResult result;
  if (const Json* messages = Find(json, "messages")) {
    FB_ASSIGN_OR_RETURN(result.messages, Messages(*messages));
  }
  if (const Json* rewards = Find(json, "rewards")) {
    FB_ASSIGN_OR_RETURN(result.rewards, Rewards(*rewards));
  }
  if (const Json* done = Find(json, "done")) {
    if (!done->is_boolean()) return Bad("'done' must be true or false");
    result.done = done->get<bool>();
  }
  if (const Json* tool = Find(json, "tool")) {
    FB_ASSIGN_OR_RETURN(result.tool, Text(*tool, "tool", kNameBytesMax));
  }
  if (const Json* reward_us = Find(json, "reward_us")) {
    FB_ASSIGN_OR_RETURN(const uint64_t us, Unsigned(*reward_us, "reward_us"));
    result.reward_us = static_cast<int64_t>(std::min<uint64_t>(us, INT64_MAX));
  }
  return result;
}

Result<Reply> Error(uint64_t id, const Json& json) {
  FB_ASSIGN_OR_RETURN(const std::string kind, Text(json["error"], "error", kNameBytesMax));
  const Json* text = Find(json, "message");
  if (text == nullptr || !text->is_string()) return Bad("an error needs a string 'message'");
  std::string message = text->get<std::string>().substr(0, kErrorBytesMax);
  if (kind == "environment") return Reply(ErrorReply{id, Internal(std::move(message))});
  if (kind == "grader") return Reply(ErrorReply{id, FailedPrecondition(std::move(message))});
  return Bad(fmt::format("'error' must be environment or grader, not '{:.40}'", kind));
}

Result<Reply> Parse(const Json& json) {
  if (!json.is_object()) return Bad("it is not a JSON object");
  if (const Json* version = Find(json, "forebay_env")) {
    FB_ASSIGN_OR_RETURN(const uint64_t number, Unsigned(*version, "forebay_env"));
    if (number != kProtocolVersion) {
      return Unimplemented(fmt::format(
          "the environment speaks version {} of the protocol, this program version {}: use the "
          "forebay package of the same release",
          number, kProtocolVersion));
    }
    HelloReply hello;
    if (const Json* name = Find(json, "name")) {
      FB_ASSIGN_OR_RETURN(hello.name, Text(*name, "name", kNameBytesMax));
    }
    return Reply(std::move(hello));
  }
  if (const Json* closed = Find(json, "closed")) {
    FB_ASSIGN_OR_RETURN(const uint64_t episode, Unsigned(*closed, "closed"));
    return Reply(ClosedReply{episode});
  }
  const Json* id = Find(json, "id");
  if (id == nullptr) return Bad("it has none of 'id', 'closed' and 'forebay_env'");
  FB_ASSIGN_OR_RETURN(const uint64_t number, Unsigned(*id, "id"));
  if (json.contains("error")) return Error(number, json);
  FB_ASSIGN_OR_RETURN(StepResult result, Answer(json));
  return Reply(AnswerReply{number, std::move(result)});
}

// The beginning of a line for an error message, with anything unprintable as '?'.
std::string Excerpt(std::string_view line) {
  constexpr size_t kBytes = 120;
  std::string text(line.substr(0, kBytes));
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return line.size() > kBytes ? text + "..." : text;
}

}  // namespace

std::string HelloLine(int64_t episodes, size_t line_bytes_max) {
  return Dump({{"forebay_env", kProtocolVersion},
               {"episodes", episodes},
               {"line_bytes_max", line_bytes_max}});
}

std::string ResetLine(uint64_t id, uint64_t episode, const ResetRequest& request, Duration left) {
  return Dump({{"op", "reset"},
               {"id", id},
               {"episode", episode},
               {"task", request.task_id},
               {"split", request.split},
               {"seed", request.seed},
               {"deadline_s", Seconds(left)}});
}

std::string StepLine(uint64_t id, uint64_t episode, std::string_view action, Duration left) {
  return Dump({{"op", "step"},
               {"id", id},
               {"episode", episode},
               {"action", action},
               {"deadline_s", Seconds(left)}});
}

std::string CloseLine(uint64_t episode) { return Dump({{"op", "close"}, {"episode", episode}}); }

Result<Reply> ParseReply(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  Result<Reply> reply = json.is_discarded() ? Bad("it is not JSON") : Parse(json);
  if (reply.ok() || reply.status().code() != StatusCode::kDataLoss) return reply;
  return Bad(fmt::format("the environment wrote a line that is not of the protocol ({}): {}",
                         reply.status().message(), Excerpt(line)));
}

void LineSplitter::Feed(std::string_view bytes) {
  bytes_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = last_ = 0;
  bytes_.append(bytes);
}

std::string LineSplitter::TakeLine() {
  const size_t size = begin_ - last_ - 1;  // without its newline
  if (size < bytes_.size() / 2) return bytes_.substr(last_, size);
  std::string rest = bytes_.substr(begin_);
  bytes_.resize(begin_ - 1);
  bytes_.erase(0, last_);
  scanned_ = begin_ = last_ = 0;
  return std::exchange(bytes_, std::move(rest));
}

Result<std::optional<std::string_view>> LineSplitter::Next() {
  const size_t newline = bytes_.find('\n', scanned_);
  const size_t end = newline == std::string::npos ? bytes_.size() : newline;
  if (end - begin_ > line_bytes_max_) {
    return Bad(fmt::format("the environment wrote a line of more than {} bytes: {}",
                           line_bytes_max_, Excerpt(std::string_view(bytes_).substr(begin_))));
  }
  scanned_ = end;
  if (newline == std::string::npos) return std::optional<std::string_view>();
  const std::string_view line = std::string_view(bytes_).substr(begin_, newline - begin_);
  last_ = begin_;
  begin_ = scanned_ = newline + 1;
  return std::optional<std::string_view>(line);
}

}  // namespace forebay::env
