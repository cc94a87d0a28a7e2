// Grader: a built-in reward, from what the agent wrote and the right answer to a score.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/builtin/pattern.h"

namespace forebay::env {

// One answer or several, each of which is right. Numbers of the source are texts here.
struct Answer {
  std::vector<std::string> texts;
};

// A text, a number, or a list of these; null is an empty one. kInvalidArgument for anything else.
Result<Answer> ParseAnswer(const nlohmann::json& value);

// A table:
//   kind       exact: the answer's text; numeric: its last number; regex: a pattern that is found;
//              format: a form of the whole text
//   name       of the reward component; the kind unless given
//   weight     times the score; 1 unless given
//   extract    which part of the text is judged (not for format): all, last_line, after_think,
//              hashes, answer_tag, boxed, or regex:PATTERN
//   fold       exact: case, spaces and one full stop do not count (true)
//   tolerance  numeric: |a - b| <= tolerance * max(1, |b|) (1e-6)
//   pattern    regex: instead of the answer
//   form       format: bare_number, think_answer, boxed, json, code_block, or regex:PATTERN
//
// Immutable; copies share it. Scores take microseconds, with patterns some ten milliseconds at
// most.
class Grader {
 public:
  // kInvalidArgument naming the key.
  static Result<Grader> Parse(const nlohmann::json& table);

  // Whether `answer` is one that this grader can compare with: kInvalidArgument says why not.
  Status Check(const Answer& answer) const;
  // 0 or 1, without the weight. kFailedPrecondition when the text cannot be judged, which is no
  // score of 0.
  Result<double> Score(std::string_view text, const Answer& answer) const;

  const std::string& name() const { return name_; }
  double weight() const { return weight_; }

 private:
  enum class Kind { kExact, kNumeric, kRegex, kFormat };

  Grader() = default;
  Status ParseRule(const nlohmann::json& table);
  Result<std::optional<std::string>> Extract(std::string_view text) const;
  Result<bool> HasForm(std::string_view text) const;
  bool Exact(std::string_view text, const Answer& answer) const;
  bool Numeric(std::string_view text, const Answer& answer) const;
  Result<bool> Matches(std::string_view text, const Answer& answer) const;

  Kind kind_ = Kind::kExact;
  std::string name_;
  double weight_ = 1;
  std::string extract_ = "all";
  std::optional<Pattern> extract_pattern_;
  bool fold_ = true;
  double tolerance_ = 1e-6;
  std::optional<Pattern> pattern_;  // of kind regex, or of form regex:...
  std::string form_;
};

}  // namespace forebay::env
