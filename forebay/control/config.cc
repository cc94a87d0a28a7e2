#include "forebay/control/config.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/control/config_mistakes.h"
#include "forebay/control/config_schema.h"

namespace forebay::control {
namespace {

constexpr size_t kConfigBytesMax = 1 << 20;

std::string Where(const std::string& origin, const toml::node& node) {
  const auto line = node.source().begin.line;
  return line ? fmt::format("{}:{}", origin, line) : origin;
}

// What a field takes, as a message names it.
struct Wanted {
  std::string_view operator()(const bool* /*field*/) const { return "true or false"; }
  std::string_view operator()(const int64_t* /*field*/) const { return "a whole number"; }
  std::string_view operator()(const double* /*field*/) const { return "a number"; }
  std::string_view operator()(const std::string* /*field*/) const { return "a string"; }
  std::string_view operator()(const std::vector<std::string>* /*field*/) const {
    return "a list of strings, for instance [\"a\", \"b\"]";
  }
  std::string_view operator()(const std::vector<int64_t>* /*field*/) const {
    return "a list of whole numbers, for instance [256, 512]";
  }
};

// The beginning of what somebody wrote.
std::string Shortened(std::string_view text) {
  constexpr size_t kShown = 60;
  return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "...";
}

// What came, as a message names it.
std::string Got(const toml::node& node) {
  if (const auto* v = node.as_string())
    return fmt::format("a string (\"{}\")", Shortened(v->get()));
  if (const auto* v = node.as_integer()) return fmt::format("a whole number ({})", v->get());
  if (const auto* v = node.as_floating_point()) return fmt::format("a number ({})", v->get());
  if (const auto* v = node.as_boolean()) return v->get() ? "true" : "false";
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  return "a date or a time";
}

struct Assigner {
  const std::string& where;
  const Field& field;
  const toml::node& node;

  Status operator()(bool* out) const { return Exactly(out); }
  Status operator()(int64_t* out) const {
    const auto value = node.value_exact<int64_t>();
    if (!value) return Wrong(Got(node));
    FB_RETURN_IF_ERROR(CheckRange(where, field, static_cast<double>(*value)));
    *out = *value;
    return OkStatus();
  }
  Status operator()(double* out) const {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value) return Wrong(Got(node));
    FB_RETURN_IF_ERROR(CheckRange(where, field, *value));
    *out = *value;
    return OkStatus();
  }
  Status operator()(std::string* out) const {
    std::string value;
    FB_RETURN_IF_ERROR(Exactly(&value));
    if (!field.choices.empty() && std::ranges::find(field.choices, value) == field.choices.end()) {
      return NotAChoice(where, field, value);
    }
    *out = std::move(value);
    return OkStatus();
  }
  Status operator()(std::vector<std::string>* out) const { return List(out); }
  Status operator()(std::vector<int64_t>* out) const { return List(out); }

 private:
  Status Wrong(std::string_view got) const {
    return WrongType(where, field, std::visit(Wanted{}, field.target), got);
  }
  template <typename T>
  Status Exactly(T* out) const {
    const auto value = node.value_exact<T>();
    if (!value) return Wrong(Got(node));
    *out = *value;
    return OkStatus();
  }
  template <typename T>
  Status List(std::vector<T>* out) const {
    const toml::array* array = node.as_array();
    if (!array) return Wrong(Got(node));
    out->clear();
    for (const toml::node& item : *array) {
      const std::optional<T> value = item.value_exact<T>();
      if (!value) return Wrong("a list with " + Got(item));
      out->push_back(*value);
    }
    return OkStatus();
  }
};

Status Apply(const toml::table& table, const std::string& prefix, const std::string& origin,
             const std::vector<Field>& fields) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const std::string where = Where(origin, node);
    const auto field = std::ranges::find(fields, key, &Field::key);
    if (field != fields.end()) {
      FB_RETURN_IF_ERROR(std::visit(Assigner{where, *field, node}, field->target));
      continue;
    }
    const bool section =
        std::ranges::any_of(fields, [&](const Field& f) { return f.key.starts_with(key + "."); });
    if (section && node.is_table()) {
      FB_RETURN_IF_ERROR(Apply(*node.as_table(), key + ".", origin, fields));
    } else if (node.is_table() && prefix.empty()) {
      return UnknownSection(where, key, fields);
    } else {
      return UnknownKey(where, key, fields);
    }
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
  const auto field = std::ranges::find(fields, key, &Field::key);
  if (field == fields.end()) return UnknownKey(origin, key, fields);
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
  const Result<toml::table> table = ParseToml("v = " + value, origin);
  if (!table.ok() || table->size() != 1) {
    return WrongType(origin, *field, std::visit(Wanted{}, field->target),
                     value.empty() ? "empty" : Shortened(value) + ", which is no value of TOML");
  }
  return std::visit(Assigner{origin, *field, *table->get("v")}, field->target);
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
