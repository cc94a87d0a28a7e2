// What to say of a command line that names a command or an option that there is not.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace forebay::apps {

// Of an argument that names no command where one is expected; "" when none does.
std::string MistypedCommand(const CLI::App& app, int argc, char** argv);

// Of an option that the command of this line does not have; "" when it has all of them.
std::string MistypedOption(const CLI::App& app, int argc, char** argv);

}  // namespace forebay::apps
