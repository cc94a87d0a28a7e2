#include "forebay/control/config_mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config_schema.h"
#include "forebay/control/nearest.h"

namespace forebay::control {
namespace {

constexpr std::string_view kAllKeys = "`forebay config` lists all";

// Samplers that `forebay serve` has and a training run cannot have. The loss needs the probability
// of each token under the distribution sampled, and again under the newer weights.
constexpr std::array<std::string_view, 3> kFilters = {"rollout.top_k", "rollout.top_p",
                                                      "rollout.min_p"};
constexpr std::array<std::string_view, 4> kEdits = {
    "rollout.repetition_penalty", "rollout.presence_penalty", "rollout.frequency_penalty",
    "rollout.logit_bias"};

// Why a run cannot sample like this; "" for any other key.
std::string_view WhyNotSampled(std::string_view key) {
  if (std::ranges::find(kFilters, key) != kFilters.end()) {
    return "the learner would have to divide by the probability that the filter kept, which "
           "depends on the weights and on the tokens kept at each step, and those are not recorded";
  }
  if (std::ranges::find(kEdits, key) != kEdits.end()) {
    return "the learner would have to change the same logits by the history of each token, and its "
           "loss does not";
  }
  return "";
}

std::string_view SectionOf(std::string_view key) { return key.substr(0, key.find('.')); }

// In the order of the documentation, each once.
std::vector<std::string_view> Sections(const std::vector<Field>& fields) {
  std::vector<std::string_view> sections;
  for (const Field& field : fields) {
    if (sections.empty() || sections.back() != SectionOf(field.key)) {
      sections.push_back(SectionOf(field.key));
    }
  }
  return sections;
}

// The words of a name in alphabetical order: max_turns is meant for turns_max.
std::string SortedWords(std::string_view name) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('_', begin), name.size());
    words.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  std::ranges::sort(words);
  return fmt::format("{}", fmt::join(words, "_"));
}

// What other systems call our keys, where the letters do not tell.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kElsewhere = {{
    {"lr", "learner.learning_rate"},
    {"batch_size", "learner.groups_per_step"},
    {"num_generations", "learner.group_size"},
    {"max_new_tokens", "rollout.new_tokens_per_turn_max"},
    {"max_tokens", "rollout.new_tokens_per_turn_max"},
    {"max_seq_len", "rollout.tokens_max"},
    {"max_model_len", "rollout.context"},
    {"max_grad_norm", "learner.grad_clip"},
}};

// The key that was meant, "" when none is near. A right name in the wrong section is nearer than
// a wrong one in the right section.
std::string_view NearestKey(std::string_view key, const std::vector<Field>& fields) {
  constexpr size_t kLongest = 64;  // distances take the product of the lengths
  if (key.size() > kLongest) return {};
  const std::string given = LowerCase(key.substr(key.rfind('.') + 1));
  for (const auto& [theirs, ours] : kElsewhere) {
    if (given == theirs) return ours;
  }
  const std::string section = key.find('.') == key.npos ? "" : LowerCase(SectionOf(key));
  const std::string_view near_section = Nearest(section, Sections(fields));
  const std::string sorted = SortedWords(given);
  std::string_view nearest;
  size_t best = 1000;
  for (const Field& field : fields) {
    const std::string_view name = field.key.substr(field.key.find('.') + 1);
    const size_t distance =
        std::min(EditDistance(given, name), EditDistance(sorted, SortedWords(name)));
    if (distance > given.size() / 2) continue;  // no more than a guess
    const std::string_view its = SectionOf(field.key);
    const size_t score = 4 * distance + (its == section ? 0 : its == near_section ? 1 : 2);
    if (score < best) {
      best = score;
      nearest = field.key;
    }
  }
  return nearest;
}

}  // namespace

std::string DidYouMean(std::string_view given, std::span<const std::string_view> words) {
  const std::string_view nearest = Nearest(given, words);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

Status UnknownKey(const std::string& where, std::string_view key,
                  const std::vector<Field>& fields) {
  if (const std::string_view why = WhyNotSampled(key); !why.empty()) {
    return InvalidArgument(fmt::format(
        "{}: '{}' cannot be set in a training run: {}, so the importance ratio would be wrong. "
        "Leave it out and use rollout.temperature, which the loss knows, to sharpen sampling; "
        "forebay serve samples a trained model with it",
        where, key, why));
  }
  if (const auto sections = Sections(fields); std::ranges::find(sections, key) != sections.end()) {
    return InvalidArgument(
        fmt::format("{}: '{}' is a section and takes no value: give one of its keys ({})", where,
                    key, kAllKeys));
  }
  const std::string_view nearest = NearestKey(key, fields);
  return InvalidArgument(
      fmt::format("{}: unknown key '{}'{} ({})", where, key,
                  nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest), kAllKeys));
}

Status UnknownSection(const std::string& where, std::string_view name,
                      const std::vector<Field>& fields) {
  const std::vector<std::string_view> sections = Sections(fields);
  return InvalidArgument(fmt::format("{}: unknown section '{}'{} (there are: {})", where, name,
                                     DidYouMean(name, sections), fmt::join(sections, ", ")));
}

Status WrongType(const std::string& where, const Field& field, std::string_view wanted,
                 std::string_view got) {
  return InvalidArgument(fmt::format("{}: '{}' must be {}, but it is {} ({})", where, field.key,
                                     wanted, got, field.meaning));
}

Status NotAChoice(const std::string& where, const Field& field, std::string_view given) {
  return InvalidArgument(fmt::format("{}: '{}' = \"{}\" is not one of: {}{} ({})", where, field.key,
                                     given, fmt::join(field.choices, ", "),
                                     DidYouMean(given, field.choices), field.meaning));
}

Status CheckRange(const std::string& where, const Field& field, double value) {
  if (std::isfinite(value) && value >= field.min && value <= field.max) return OkStatus();
  return InvalidArgument(
      fmt::format("{}: '{}' = {} is out of range: it must be between {} and {} ({})", where,
                  field.key, value, field.min, field.max, field.meaning));
}

}  // namespace forebay::control
