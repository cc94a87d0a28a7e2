#include "forebay/control/config_programs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::control {
namespace {

// "" when `path` can be run, else why not.
std::string WhyNotRun(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR
               ? "there is no such file"
               : std::error_code(errno, std::generic_category()).message();
  }
  if (S_ISDIR(info.st_mode)) return "it is a folder";
  if (!S_ISREG(info.st_mode)) return "it is no file";
  if (access(path.c_str(), X_OK) != 0) {
    return "it is not executable (chmod +x makes it so, or put its interpreter in front, for "
           "instance \"python3\")";
  }
  return "";
}

bool OnPath(const std::string& name) {
  const char* set = std::getenv("PATH");
  std::string_view path = set == nullptr ? "/usr/bin:/bin" : set;
  while (!path.empty()) {
    const size_t colon = std::min(path.find(':'), path.size());
    if (WhyNotRun(fmt::format("{}/{}", path.substr(0, colon), name)).empty()) return true;
    path.remove_prefix(std::min(colon + 1, path.size()));
  }
  return false;
}

Status CheckProgram(std::string_view key, const std::vector<std::string>& command,
                    const std::string& folder) {
  if (command.empty()) return OkStatus();
  const std::string& name = command.front();
  if (name.find('/') == std::string::npos) {
    if (OnPath(name)) return OkStatus();
    std::error_code error;
    const bool beside = std::filesystem::exists(std::filesystem::path(folder) / name, error);
    return InvalidArgument(fmt::format(
        "{} begins with '{}', and there is no such program on the PATH: install it, or give {}",
        key, name,
        beside ? fmt::format("'./{}' for the one in {}", name, folder) : "the program's path"));
  }
  const std::string path = (std::filesystem::path(folder) / name).string();
  const std::string why = WhyNotRun(path);
  if (why.empty()) return OkStatus();
  return InvalidArgument(
      fmt::format("{} begins with '{}', which cannot be run: {}{}. Its first word must be a "
                  "program: a path relative to the configuration's folder, or a name on the PATH",
                  key, name, why, path == name ? "" : fmt::format(" ({})", path)));
}

}  // namespace

Status CheckPrograms(const Config& config) {
  const EnvSection& e = config.env;
  if (e.kind == "python" || e.kind == "harness") {
    FB_RETURN_IF_ERROR(CheckProgram("env.command", e.command, config.folder));
  }
  if (std::ranges::find(e.tools, "mcp") == e.tools.end()) return OkStatus();
  return CheckProgram("env.mcp_command", e.mcp_command, config.folder);
}

}  // namespace forebay::control
