#include "forebay/control/config.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/control/config_schema.h"
#include "forebay/control/nearest.h"

namespace forebay::control {
namespace {

constexpr size_t kConfigBytesMax = 1 << 20;

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

Status UnknownKey(const std::string& key, const std::vector<Field>& fields,
                  const std::string& where) {
  if (const std::string_view why = WhyNotSampled(key); !why.empty()) {
    return InvalidArgument(fmt::format(
        "{}: '{}' cannot be set in a training run: {}, so the importance ratio would be wrong. "
        "Leave it out and use rollout.temperature, which the loss knows, to sharpen sampling; "
        "forebay serve samples a trained model with it",
        where, key, why));
  }
  std::string_view nearest;
  size_t best = 1000;
  for (const Field& field : fields) {
    // A right name in the wrong section is nearer than its letters say.
    const std::string_view name = field.key.substr(field.key.find('.') + 1);
    const std::string_view given = std::string_view(key).substr(key.rfind('.') + 1);
    const size_t distance = std::min(EditDistance(key, field.key), EditDistance(given, name) + 1);
    if (distance < best) {
      best = distance;
      nearest = field.key;
    }
  }
  return InvalidArgument(fmt::format(
      "{}: unknown key '{}'; the nearest known key is '{}' (`forebay config` lists all)", where,
      key, nearest));
}

std::string Where(const std::string& origin, const toml::node& node) {
  const auto line = node.source().begin.line;
  return line ? fmt::format("{}:{}", origin, line) : origin;
}

Status WrongType(const std::string& where, const Field& field, std::string_view wanted) {
  return InvalidArgument(
      fmt::format("{}: '{}' must be {} ({})", where, field.key, wanted, field.meaning));
}

Status CheckRange(const std::string& where, const Field& field, double value) {
  if (std::isfinite(value) && value >= field.min && value <= field.max) return OkStatus();
  return InvalidArgument(
      fmt::format("{}: '{}' = {} is out of range: it must be between {} and {} ({})", where,
                  field.key, value, field.min, field.max, field.meaning));
}

template <typename T>
Status AssignList(const std::string& where, const Field& field, const toml::node& node,
                  std::vector<T>* out, std::string_view wanted) {
  const toml::array* array = node.as_array();
  if (!array) return WrongType(where, field, wanted);
  out->clear();
  for (const toml::node& item : *array) {
    const std::optional<T> value = item.value_exact<T>();
    if (!value) return WrongType(where, field, wanted);
    out->push_back(*value);
  }
  return OkStatus();
}

struct Assigner {
  const std::string& where;
  const Field& field;
  const toml::node& node;

  Status operator()(bool* out) const {
    const auto value = node.value_exact<bool>();
    if (!value) return WrongType(where, field, "true or false");
    *out = *value;
    return OkStatus();
  }
  Status operator()(int64_t* out) const {
    const auto value = node.value_exact<int64_t>();
    if (!value) return WrongType(where, field, "a whole number");
    FB_RETURN_IF_ERROR(CheckRange(where, field, static_cast<double>(*value)));
    *out = *value;
    return OkStatus();
  }
  Status operator()(double* out) const {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value) return WrongType(where, field, "a number");
    FB_RETURN_IF_ERROR(CheckRange(where, field, *value));
    *out = *value;
    return OkStatus();
  }
  Status operator()(std::string* out) const {
    const auto value = node.value_exact<std::string>();
    if (!value) return WrongType(where, field, "a string");
    if (!field.choices.empty() &&
        std::find(field.choices.begin(), field.choices.end(), *value) == field.choices.end()) {
      return InvalidArgument(fmt::format("{}: '{}' = \"{}\" is not one of: {} ({})", where,
                                         field.key, *value, fmt::join(field.choices, ", "),
                                         field.meaning));
    }
    *out = *value;
    return OkStatus();
  }
  Status operator()(std::vector<std::string>* out) const {
    return AssignList(where, field, node, out, "a list of strings");
  }
  Status operator()(std::vector<int64_t>* out) const {
    return AssignList(where, field, node, out, "a list of whole numbers");
  }
};

Status Apply(const toml::table& table, const std::string& prefix, const std::string& origin,
             const std::vector<Field>& fields) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const std::string where = Where(origin, node);
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.key == key; });
    if (field != fields.end()) {
      FB_RETURN_IF_ERROR(std::visit(Assigner{where, *field, node}, field->target));
      continue;
    }
    const bool section = std::any_of(fields.begin(), fields.end(), [&](const Field& f) {
      return f.key.substr(0, key.size() + 1) == key + ".";
    });
    if (!section || !node.is_table()) return UnknownKey(key, fields, where);
    FB_RETURN_IF_ERROR(Apply(*node.as_table(), key + ".", origin, fields));
  }
  return OkStatus();
}

Result<toml::table> ParseToml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(fmt::format("{}:{}: not valid TOML: {}", origin,
                                       error.source().begin.line, error.description()));
  }
}

// As TOML.
std::string Quote(const std::string& s) {
  std::string out = "\"";
  for (const char ch : s) {
    if (ch == '"' || ch == '\\') {
      out += '\\';
      out += ch;
    } else if (static_cast<unsigned char>(ch) < 0x20 || ch == 0x7F) {
      out += fmt::format("\\u{:04x}", static_cast<int>(ch));
    } else {
      out += ch;
    }
  }
  return out + "\"";
}

// key=value, where the value is TOML, or a bare string.
Status ApplySet(const std::string& set, const std::vector<Field>& fields) {
  const size_t equals = set.find('=');
  if (equals == std::string::npos || equals == 0) {
    return InvalidArgument(fmt::format("--set {}: write it as section.key=value", set));
  }
  const std::string key = set.substr(0, equals);
  const std::string value = set.substr(equals + 1);
  const std::string origin = "--set " + key;
  const auto field =
      std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.key == key; });
  if (field == fields.end()) return UnknownKey(key, fields, origin);
  const bool is_string = std::holds_alternative<std::string*>(field->target);
  if (is_string && (value.empty() || (value.front() != '"' && value.front() != '\''))) {
    // Never parsed, yet it goes into the run's config.toml, which must be read back.
    if (!ParseToml("v = " + Quote(value), origin).ok()) {
      return InvalidArgument(fmt::format("{}: the value is not UTF-8", origin));
    }
    toml::table table;
    table.insert("v", value);
    return std::visit(Assigner{origin, *field, *table.get("v")}, field->target);
  }
  FB_ASSIGN_OR_RETURN(toml::table table, ParseToml("v = " + value, origin));
  return std::visit(Assigner{origin, *field, *table.get("v")}, field->target);
}

struct Formatter {
  std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
  std::string operator()(const int64_t* v) const { return fmt::format("{}", *v); }
  std::string operator()(const double* v) const {
    std::string text = fmt::format("{}", *v);  // the shortest form that reads back to the same bits
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return text;
  }
  std::string operator()(const std::string* v) const { return Quote(*v); }
  std::string operator()(const std::vector<std::string>* v) const {
    std::vector<std::string> quoted;
    quoted.reserve(v->size());
    for (const std::string& s : *v) quoted.push_back(Quote(s));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
  std::string operator()(const std::vector<int64_t>* v) const {
    return fmt::format("[{}]", fmt::join(*v, ", "));
  }
};

}  // namespace

std::string Config::Resolve(const std::string& path) const {
  if (path.empty() || path.front() == '/' || path.rfind("tiny:", 0) == 0) return path;
  return (std::filesystem::path(folder) / path).lexically_normal().string();
}

Result<Config> ParseConfig(std::string_view text, const std::string& origin,
                           const std::string& folder, const std::vector<std::string>& sets) {
  Config config;
  config.folder = folder;
  const std::vector<Field> fields = Fields(config);
  FB_ASSIGN_OR_RETURN(const toml::table table, ParseToml(text, origin));
  FB_RETURN_IF_ERROR(Apply(table, "", origin, fields));
  for (const std::string& set : sets) FB_RETURN_IF_ERROR(ApplySet(set, fields));
  if (Status status = CheckCombinations(config); !status.ok()) return status.WithContext(origin);
  return config;
}

Result<Config> LoadConfig(const std::string& path, const std::vector<std::string>& sets) {
  FB_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kConfigBytesMax));
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  return ParseConfig(text, path, folder.string(), sets);
}

std::string FormatConfig(const Config& config) {
  Config copy = config;
  std::string out;
  std::string_view section;
  for (const Field& field : Fields(copy)) {
    const size_t dot = field.key.find('.');
    if (field.key.substr(0, dot) != section) {
      section = field.key.substr(0, dot);
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    if (field.is_path) {
      auto* path = std::get<std::string*>(field.target);
      *path = config.Resolve(*path);
    }
    out +=
        fmt::format("{} = {}\n", field.key.substr(dot + 1), std::visit(Formatter{}, field.target));
  }
  return out;
}

std::vector<KeyDifference> DifferingKeys(const Config& left, const Config& right) {
  Config a = left;
  Config b = right;
  const std::vector<Field> fields = Fields(a);
  const std::vector<Field> others = Fields(b);
  std::vector<KeyDifference> differences;
  for (size_t i = 0; i < fields.size(); ++i) {
    KeyDifference d{.key = std::string(fields[i].key),
                    .left = std::visit(Formatter{}, fields[i].target),
                    .right = std::visit(Formatter{}, others[i].target)};
    if (d.left != d.right) differences.push_back(std::move(d));
  }
  return differences;
}

std::string DescribeConfig() {
  Config defaults;
  std::string out;
  for (const Field& field : Fields(defaults)) {
    out += fmt::format("{} = {}\n    {}", field.key, std::visit(Formatter{}, field.target),
                       field.meaning);
    if (!field.choices.empty()) out += fmt::format(" (one of: {})", fmt::join(field.choices, ", "));
    out += '\n';
  }
  return out;
}

}  // namespace forebay::control
