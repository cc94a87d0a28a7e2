#include "forebay/env/sandbox/command.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/env/sandbox.h"

namespace forebay::env {
namespace {

constexpr size_t kWordBytesMax = 128 * 1024 - 1;  // of the kernel: MAX_ARG_STRLEN
constexpr size_t kCommandBytesMax = 512 * 1024;

std::string Limit(std::string_view name, int64_t value) {
  return fmt::format("--{}={}:{}", name, value, value);
}

}  // namespace

Status CheckSandboxCommand(const std::vector<std::string>& command) {
  if (command.empty() || command[0].empty()) {
    return InvalidArgument("the command is empty; its first word names a program");
  }
  size_t bytes = 0;
  for (const std::string& word : command) {
    bytes += word.size() + 1;
    if (word.find('\0') != std::string::npos) {
      return InvalidArgument("a zero byte cannot be part of a command");
    }
    if (word.size() > kWordBytesMax || bytes > kCommandBytesMax) {
      return InvalidArgument(
          fmt::format("the command is too long: {} bytes a word and {} in all are possible",
                      kWordBytesMax, kCommandBytesMax));
    }
  }
  return OkStatus();
}

Status CheckSandboxOptions(const SandboxOptions& options) {
  const auto positive = [](std::string_view name, int64_t value, int64_t min) {
    if (value >= min) return OkStatus();
    return InvalidArgument(
        fmt::format("{} of a sandbox must be {} or more, not {}", name, min, value));
  };
  FB_RETURN_IF_ERROR(positive("cpu_s_max", options.cpu_s_max, 1));
  FB_RETURN_IF_ERROR(positive("memory_bytes_max", options.memory_bytes_max, 0));
  FB_RETURN_IF_ERROR(positive("file_bytes_max", options.file_bytes_max, 0));
  FB_RETURN_IF_ERROR(positive("open_files_max", options.open_files_max, 16));
  FB_RETURN_IF_ERROR(positive("processes_max", options.processes_max, 1));
  FB_RETURN_IF_ERROR(positive("tmp_bytes_max", options.tmp_bytes_max, 4096));
  FB_RETURN_IF_ERROR(
      positive("output_bytes_max", static_cast<int64_t>(options.output_bytes_max), 1));
  FB_RETURN_IF_ERROR(positive("parallel_max", options.parallel_max, 0));
  if (options.wall_max <= Duration::zero()) {
    return InvalidArgument("wall_max of a sandbox must be more than 0");
  }
  for (const std::string& path : options.read_only) {
    std::error_code error;
    if (!path.starts_with('/') || !std::filesystem::exists(path, error)) {
      return InvalidArgument(fmt::format(
          "'{}' in read_only of a sandbox must be a whole path of a file or folder that is there",
          path));
    }
  }
  return OkStatus();
}

std::vector<std::string> SandboxCommand(const SandboxOptions& options,
                                        const std::vector<std::string>& command) {
  std::vector<std::string> words;
  const auto add = [&words](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  add({options.bwrap, "--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent",
       "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"});
  add({"--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "HOME", "/tmp",
       "--setenv", "LANG", "C.UTF-8", "--setenv", "TMPDIR", "/tmp"});
  add({"--ro-bind", "/usr", "/usr"});
  for (const std::string folder : {"/bin", "/sbin", "/lib", "/lib32", "/lib64"}) {
    std::error_code error;
    if (std::filesystem::is_symlink(folder, error)) {
      add({"--symlink", std::filesystem::read_symlink(folder, error).string(), folder});
    } else if (std::filesystem::is_directory(folder, error)) {
      add({"--ro-bind", folder, folder});
    }
  }
  for (const std::string path : {"/etc/alternatives", "/etc/ld.so.cache"}) {
    add({"--ro-bind-try", path, path});
  }
  // Every file system but the small /tmp is read-only, also the ones that bwrap keeps in memory.
  add({"--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--size",
       fmt::format("{}", options.tmp_bytes_max), "--tmpfs", "/tmp", "--chdir", "/tmp"});
  for (const std::string& path : options.read_only) add({"--ro-bind", path, path});
  add({"--remount-ro", "/", "--"});
  // Inside, where the limit of processes counts those of this sandbox only.
  add({"/bin/sh", "-c", R"(printf '\001ready\n'; exec "$@")", "sh", "/usr/bin/prlimit",
       Limit("core", 0), Limit("cpu", options.cpu_s_max), Limit("fsize", options.file_bytes_max),
       Limit("nofile", options.open_files_max), Limit("nproc", options.processes_max)});
  if (options.memory_bytes_max > 0) add({Limit("as", options.memory_bytes_max)});
  add({"--"});
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace forebay::env
