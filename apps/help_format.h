// How --help prints options: what each takes, what it means, its limits and its default, in lines
// that fit a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace forebay::apps {

// Given to the root command before any other is added: they inherit it.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

}  // namespace forebay::apps
