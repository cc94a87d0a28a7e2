#include "forebay/env/builtin/dataset.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/builtin/dataset_rows.h"
#include "forebay/env/builtin/grading.h"
#include "forebay/env/environment.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;

constexpr int64_t kTriesMax = 100;
constexpr std::string_view kPlaceholder = "{prompt}";

struct DatasetOptions {
  std::string path, eval_path;
  double eval_fraction = 0.1;
  DatasetKeys keys;
  std::string system;
  std::vector<Message> demonstrations;
  std::string prompt_template = std::string(kPlaceholder);
  std::vector<Grader> graders;
  int64_t tries = 1;
  std::string retry = "Wrong. Try again.";
};

// What all episodes share. Immutable but for `stopped`.
struct Shared {
  std::vector<DatasetRow> train, eval;
  std::vector<Grader> graders;
  int64_t tries = 1;
  std::string retry;
  bool stopped = false;
};

class DatasetEnvironment final : public Environment {
 public:
  explicit DatasetEnvironment(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}

  Task<Result<std::vector<Message>>> Reset(ResetRequest request, TimePoint) override {
    const std::vector<DatasetRow>& rows = request.split == "eval" ? shared_->eval : shared_->train;
    row_ = &rows[static_cast<uint64_t>(request.task_id) % rows.size()];
    tried_ = 0;
    co_return row_->prompt;
  }

  Task<Result<StepResult>> Step(std::string action, TimePoint) override { co_return Grade(action); }

 private:
  Result<StepResult> Grade(const std::string& action) {
    if (row_ == nullptr) return Internal("a step before the reset of its episode");
    ++tried_;
    StepResult result;
    bool right = false;
    std::map<std::string, double> rewards;
    for (size_t i = 0; i < shared_->graders.size(); ++i) {
      const Grader& grader = shared_->graders[i];
      FB_ASSIGN_OR_RETURN(double score, grader.Score(action, row_->answer));
      if (i == 0) {
        right = score > 0;
        score /= static_cast<double>(tried_);
      }
      rewards[grader.name()] += grader.weight() * score;
    }
    result.done = right || tried_ >= shared_->tries;
    if (result.done) {
      result.rewards = std::move(rewards);
    } else {
      result.messages.push_back({"user", shared_->retry});
    }
    return result;
  }

  std::shared_ptr<const Shared> shared_;
  const DatasetRow* row_ = nullptr;
  int64_t tried_ = 0;
};

class DatasetPool final : public EnvironmentPool {
 public:
  explicit DatasetPool(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Task<Result<std::unique_ptr<Environment>>> Acquire(TimePoint) override {
    if (shared_->stopped) co_return Cancelled("the environment pool is shut down");
    co_return std::unique_ptr<Environment>(std::make_unique<DatasetEnvironment>(shared_));
  }

  Task<void> Shutdown(TimePoint) override {
    shared_->stopped = true;
    co_return;
  }

 private:
  std::shared_ptr<Shared> shared_;
};

Status Wrong(std::string_view key, std::string_view wanted) {
  return InvalidArgument(fmt::format("{} of environment 'dataset' must be {}", key, wanted));
}

Status ParseText(const Json& value, const std::string& key, std::string& out) {
  if (!value.is_string()) return Wrong(key, "a text");
  out = value.get<std::string>();
  return OkStatus();
}

Status ParseRewards(const Json& value, std::vector<Grader>& out) {
  if (!value.is_array()) return Wrong("rewards", "a list of tables");
  for (const Json& table : value) {
    FB_ASSIGN_OR_RETURN(Grader grader, Grader::Parse(table));
    out.push_back(std::move(grader));
  }
  return OkStatus();
}

Status ParseDemonstrations(const Json& value, std::vector<Message>& out) {
  if (!value.is_array()) return Wrong("demonstrations", "a list of messages");
  for (const Json& one : value) {
    Result<Message> message = ParseDatasetMessage(one);
    if (!message.ok())
      return Wrong("demonstrations", "a list of messages: " + message.status().message());
    out.push_back(std::move(*message));
  }
  return OkStatus();
}

Status ParseOption(const std::string& key, const Json& value, DatasetOptions& out) {
  if (key == "path") return ParseText(value, key, out.path);
  if (key == "eval_path") return ParseText(value, key, out.eval_path);
  if (key == "prompt_key") return ParseText(value, key, out.keys.prompt);
  if (key == "answer_key") return ParseText(value, key, out.keys.answer);
  if (key == "system") return ParseText(value, key, out.system);
  if (key == "retry") return ParseText(value, key, out.retry);
  if (key == "rewards") return ParseRewards(value, out.graders);
  if (key == "demonstrations") return ParseDemonstrations(value, out.demonstrations);
  if (key == "template") {
    FB_RETURN_IF_ERROR(ParseText(value, key, out.prompt_template));
    if (out.prompt_template.find(kPlaceholder) == std::string::npos) {
      return Wrong(key, "a text with {prompt} in it, which stands for the row's prompt");
    }
    return OkStatus();
  }
  if (key == "eval_fraction") {
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() < 1)) {
      return Wrong(key, "a number from 0 to below 1");
    }
    out.eval_fraction = value.get<double>();
    return OkStatus();
  }
  if (key == "tries") {
    if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
        value.get<int64_t>() > kTriesMax) {
      return Wrong(key, fmt::format("a whole number from 1 to {}", kTriesMax));
    }
    out.tries = value.get<int64_t>();
    return OkStatus();
  }
  return InvalidArgument(fmt::format(
      "environment 'dataset' has no option '{}'; it has: path, eval_path, eval_fraction, "
      "prompt_key, answer_key, system, demonstrations, template, rewards, tries, retry",
      key));
}

Result<DatasetOptions> ParseOptions(const Json& json) {
  DatasetOptions options;
  if (!json.is_null() && !json.is_object()) {
    return InvalidArgument("the options of environment 'dataset' must be a table");
  }
  for (const auto& [key, value] : json.items()) {
    FB_RETURN_IF_ERROR(ParseOption(key, value, options));
  }
  if (options.path.empty()) {
    return InvalidArgument(
        "environment 'dataset' needs the option path: a file of JSON lines, for instance "
        "'{\"path\": \"tasks.jsonl\", \"rewards\": [{\"kind\": \"numeric\"}]}'");
  }
  if (options.graders.empty()) {
    return InvalidArgument(
        "environment 'dataset' needs the option rewards: a list of tables, for instance "
        "[{\"kind\": \"numeric\"}]; kinds are exact, numeric, regex, format");
  }
  return options;
}

// Puts the system message, the demonstrations and the template around the row's prompt.
void Dress(const DatasetOptions& options, DatasetRow& row) {
  if (row.prompt.size() == 1 && row.prompt[0].role == "user") {
    std::string text = options.prompt_template;
    text.replace(text.find(kPlaceholder), kPlaceholder.size(), row.prompt[0].content);
    row.prompt[0].content = std::move(text);
  }
  const bool has_system = row.prompt.front().role == "system";
  row.prompt.insert(row.prompt.begin() + (has_system ? 1 : 0), options.demonstrations.begin(),
                    options.demonstrations.end());
  if (!options.system.empty()) row.prompt.insert(row.prompt.begin(), {"system", options.system});
}

Result<std::vector<DatasetRow>> Read(const DatasetOptions& options, const std::string& folder,
                                     const std::string& path) {
  const std::string full = folder.empty() || path.starts_with('/') ? path : folder + "/" + path;
  FB_ASSIGN_OR_RETURN(const std::string text, ReadFile(full));
  return ParseDatasetRows(text, full, options.keys, options.graders);
}

Status Split(const DatasetOptions& options, std::vector<DatasetRow> rows, Shared& shared) {
  if (options.eval_fraction == 0) {
    shared.eval = rows;
    shared.train = std::move(rows);
    return OkStatus();
  }
  const std::vector<bool> held_out = HeldOut(rows, options.eval_fraction);
  for (size_t i = 0; i < rows.size(); ++i) {
    (held_out[i] ? shared.eval : shared.train).push_back(std::move(rows[i]));
  }
  if (!shared.eval.empty()) return OkStatus();
  return InvalidArgument(fmt::format(
      "{} has one prompt only, so that none can be held out for evaluation: add rows, give "
      "eval_path, or set eval_fraction to 0 to evaluate on what is trained on",
      options.path));
}

}  // namespace

Result<std::unique_ptr<EnvironmentPool>> MakeDatasetPool(const Json& json,
                                                         const std::string& folder, Loop&) {
  FB_ASSIGN_OR_RETURN(DatasetOptions options, ParseOptions(json));
  auto shared = std::make_shared<Shared>();
  FB_ASSIGN_OR_RETURN(std::vector<DatasetRow> rows, Read(options, folder, options.path));
  if (options.eval_path.empty()) {
    FB_RETURN_IF_ERROR(Split(options, std::move(rows), *shared));
  } else {
    shared->train = std::move(rows);
    FB_ASSIGN_OR_RETURN(shared->eval, Read(options, folder, options.eval_path));
  }
  for (std::vector<DatasetRow>* split : {&shared->train, &shared->eval}) {
    for (DatasetRow& row : *split) Dress(options, row);
  }
  shared->graders = std::move(options.graders);
  shared->tries = options.tries;
  shared->retry = std::move(options.retry);
  return std::unique_ptr<EnvironmentPool>(std::make_unique<DatasetPool>(std::move(shared)));
}

}  // namespace forebay::env
