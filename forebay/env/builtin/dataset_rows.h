// The rows of the environment "dataset": prompts with answers, from a file of JSON lines.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/builtin/grading.h"
#include "forebay/env/environment.h"

namespace forebay::env {

struct DatasetRow {
  std::vector<Message> prompt;
  Answer answer;
};

struct DatasetKeys {
  std::string prompt = "prompt";  // a text, or a list of {"role", "content"}
  std::string answer = "answer";
};

// A message as a prompt has it: {"role", "content"}.
Result<Message> ParseDatasetMessage(const nlohmann::json& value);

// Reads each line of `text`; blank ones are skipped, other keys ignored. Each answer must suit
// every grader. kInvalidArgument names `path`, the line and what is wrong there.
Result<std::vector<DatasetRow>> ParseDatasetRows(std::string_view text, const std::string& path,
                                                 const DatasetKeys& keys,
                                                 const std::vector<Grader>& graders);

// Which rows are held out: about `fraction` of them, chosen by a hash of the prompt, so that equal
// prompts are on one side. At least one row on each side if there are two different prompts.
std::vector<bool> HeldOut(const std::vector<DatasetRow>& rows, double fraction);

}  // namespace forebay::env
