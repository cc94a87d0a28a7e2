// What an OpenEnv server is told and answers. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env::openenv {

using Json = nlohmann::json;

// An object whose texts "$name" are replaced.
class Template {
 public:
  // kInvalidArgument: not a JSON object; `option` names it. "" is no template.
  static Result<Template> Parse(std::string_view option, const std::string& text);
  bool empty() const { return json_.is_null(); }
  Json Fill(const Json& values) const;  // an object: "$name" -> value

 private:
  Json json_;
};

// `task_seed` is equal for all samples of a task.
Json ResetValues(const ResetRequest& request);

std::string ResetText(const Template& reset, const ResetRequest& request);

// The action, or what is wrong with it, for the model.
struct Action {
  std::string text;  // the message to send
  std::string error;
};
Action ActionText(const Template& action, std::string_view written);

// What came back.
struct Answer {
  std::string observation;  // as the model sees it
  std::optional<double> reward;
  bool done = false;
  std::string invalid;  // the action was refused, why; then there is nothing else
  bool full = false;    // the server has no place for another session
};
// kDataLoss: not an answer; kInternal: the environment failed.
Result<Answer> ParseAnswer(std::string_view text, const std::string& field);

}  // namespace forebay::env::openenv
