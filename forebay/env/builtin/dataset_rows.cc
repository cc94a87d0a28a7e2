#include "forebay/env/builtin/dataset_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/env/builtin/grading.h"
#include "forebay/env/environment.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;

constexpr size_t kMessagesMax = 64;

Result<std::vector<Message>> ParsePrompt(const Json& value) {
  std::vector<Message> messages;
  if (value.is_string()) {
    messages.push_back({"user", value.get<std::string>()});
  } else if (value.is_array() && !value.empty() && value.size() <= kMessagesMax) {
    for (const Json& one : value) {
      FB_ASSIGN_OR_RETURN(Message message, ParseDatasetMessage(one));
      messages.push_back(std::move(message));
    }
  } else {
    return InvalidArgument(
        fmt::format("a prompt is a text or a list of 1 to {} messages", kMessagesMax));
  }
  return messages;
}

Result<DatasetRow> ParseRow(std::string_view line, const DatasetKeys& keys,
                            const std::vector<Grader>& graders) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("a line must hold one JSON object");
  const auto prompt = json.find(keys.prompt);
  if (prompt == json.end()) {
    return InvalidArgument(fmt::format(
        "the object has no \"{}\"; the option prompt_key names the prompt's key", keys.prompt));
  }
  DatasetRow row;
  FB_ASSIGN_OR_RETURN(row.prompt, ParsePrompt(*prompt));
  const auto answer = json.find(keys.answer);
  if (answer != json.end()) {
    FB_ASSIGN_OR_RETURN(row.answer, ParseAnswer(*answer));
  }
  for (const Grader& grader : graders) {
    const Status status = grader.Check(row.answer);
    if (!status.ok() && answer == json.end()) {
      return InvalidArgument(fmt::format(
          "the object has no \"{}\"; the option answer_key names the answer's key", keys.answer));
    }
    FB_RETURN_IF_ERROR(status);
  }
  return row;
}

uint64_t Hash(const std::vector<Message>& messages) {
  uint64_t hash = 0;
  for (const Message& message : messages) {
    for (const std::string* text : {&message.role, &message.content}) {
      for (const char c : *text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
      hash = Mix64(hash);
    }
  }
  return hash;
}

}  // namespace

Result<Message> ParseDatasetMessage(const Json& value) {
  const bool good = value.is_object() && value.contains("role") && value.contains("content") &&
                    value["role"].is_string() && value["content"].is_string();
  if (!good)
    return InvalidArgument("a message is an object with the texts \"role\" and \"content\"");
  return Message{value["role"].get<std::string>(), value["content"].get<std::string>()};
}

Result<std::vector<DatasetRow>> ParseDatasetRows(std::string_view text, const std::string& path,
                                                 const DatasetKeys& keys,
                                                 const std::vector<Grader>& graders) {
  std::vector<DatasetRow> rows;
  int64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<DatasetRow> row = ParseRow(line, keys, graders);
    if (!row.ok()) return row.status().WithContext(fmt::format("{}, line {}", path, number));
    rows.push_back(std::move(*row));
  }
  if (rows.empty()) {
    return InvalidArgument(fmt::format(
        "{} has no rows: a data set is a file of JSON objects, one a line, for instance "
        "{{\"prompt\": \"2+3=?\", \"answer\": 5}}",
        path));
  }
  return rows;
}

std::vector<bool> HeldOut(const std::vector<DatasetRow>& rows, double fraction) {
  std::vector<uint64_t> hashes;
  hashes.reserve(rows.size());
  for (const DatasetRow& row : rows) hashes.push_back(Hash(row.prompt));
  std::vector<uint64_t> different = hashes;
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  if (fraction <= 0 || different.size() < 2) return std::vector<bool>(rows.size(), false);
  const auto wanted =
      static_cast<size_t>(std::llround(fraction * static_cast<double>(different.size())));
  const uint64_t below = different[std::clamp<size_t>(wanted, 1, different.size() - 1)];
  std::vector<bool> held_out;
  held_out.reserve(rows.size());
  for (const uint64_t hash : hashes) held_out.push_back(hash < below);
  return held_out;
}

}  // namespace forebay::env
