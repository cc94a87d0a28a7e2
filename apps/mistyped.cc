#include "apps/mistyped.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/control/nearest.h"

namespace forebay::apps {
namespace {

constexpr size_t kShown = 80;  // bytes of an argument

// The command that a line names, as far as it names any, and the arguments after it.
struct Named {
  const CLI::App* command;
  std::string path;  // "forebay buffer"
  int next;
};

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

Named FindCommand(const CLI::App& app, int argc, char** argv) {
  Named out{.command = &app, .path = app.get_name(), .next = 1};
  for (; out.next < argc; ++out.next) {
    const auto commands = Commands(*out.command);
    const auto found = std::ranges::find(commands, argv[out.next], &CLI::App::get_name);
    if (found == commands.end()) break;
    out.command = *found;
    out.path += fmt::format(" {}", argv[out.next]);
  }
  return out;
}

}  // namespace

std::string MistypedCommand(const CLI::App& app, int argc, char** argv) {
  const Named named = FindCommand(app, argc, argv);
  const auto commands = Commands(*named.command);
  if (commands.empty() || named.next >= argc || argv[named.next][0] == '-') return "";
  const std::string given = argv[named.next];
  std::vector<std::string_view> names;
  names.reserve(commands.size());
  for (const CLI::App* command : commands) names.emplace_back(command->get_name());
  const std::string_view nearest = control::Nearest(given, names);
  const std::string hint =
      nearest.empty() ? "" : fmt::format("; did you mean '{} {}'?", named.path, nearest);
  return fmt::format("there is no command '{} {}'{} ({} --help lists them)", named.path,
                     given.substr(0, kShown), hint, named.path);
}

std::string MistypedOption(const CLI::App& app, int argc, char** argv) {
  const Named named = FindCommand(app, argc, argv);
  std::vector<std::string> names;
  for (const CLI::Option* option : named.command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (int i = named.next; i < argc; ++i) {
    const std::string given = std::string(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (given == "--") break;
    if (!given.starts_with("--") || std::ranges::find(names, given) != names.end()) continue;
    const std::vector<std::string_view> words(names.begin(), names.end());
    const std::string_view nearest = control::Nearest(given, words);
    const std::string hint = nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
    return fmt::format("{} has no option '{}'{} ({} --help lists them)", named.path,
                       given.substr(0, kShown), hint, named.path);
  }
  return "";
}

}  // namespace forebay::apps
