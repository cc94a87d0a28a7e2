// Whatever a policy writes is graded 0 or 1, or not at all by a typed error; whatever stands in a
// data set's file is rows or an error with a place.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/env/builtin/dataset_rows.h"
#include "forebay/env/builtin/grading.h"

namespace {

using forebay::env::Answer;
using forebay::env::Grader;

std::vector<Grader> MakeGraders() {
  std::vector<Grader> graders;
  const auto add = [&graders](const nlohmann::json& table) {
    auto grader = Grader::Parse(table);
    FB_CHECK(grader.ok());
    graders.push_back(*grader);
  };
  for (const char* extract : {"all", "last_line", "after_think", "hashes", "answer_tag", "boxed",
                              "regex:\\(([a-d])\\)", "regex:(a|aa)+b"}) {
    add({{"kind", "exact"}, {"extract", extract}});
    add({{"kind", "numeric"}, {"extract", extract}});
  }
  for (const char* form : {"bare_number", "think_answer", "boxed", "json", "code_block"}) {
    add({{"kind", "format"}, {"form", form}});
  }
  return graders;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Grader> graders = MakeGraders();
  static const Answer answer{.texts = {"5", "-1,000.5", "a 1/2"}};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Grader& grader : graders) {
    const auto score = grader.Score(text, answer);
    if (score.ok()) {
      FB_CHECK(*score == 0 || *score == 1);
    } else {
      FB_CHECK(score.status().code() == forebay::StatusCode::kFailedPrecondition);
    }
  }
  const auto rows = forebay::env::ParseDatasetRows(text, "rows.jsonl", {}, graders);
  if (rows.ok()) {
    FB_CHECK(!rows->empty());
    const std::vector<bool> held_out = forebay::env::HeldOut(*rows, 0.5);
    FB_CHECK(held_out.size() == rows->size());
  } else {
    FB_CHECK(rows.status().code() == forebay::StatusCode::kInvalidArgument);
  }
  return 0;
}
