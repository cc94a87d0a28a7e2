#include "forebay/xla/pjrt/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"

namespace forebay::xla {
namespace {

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// <executable dir>/../lib/forebay/pjrt_cpu.so: where an installed Forebay keeps its plugin.
std::string InstalledPlugin() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  return (self.parent_path().parent_path() / "lib" / "forebay" / "pjrt_cpu.so").string();
}

}  // namespace

Result<std::string> FindPlugin(const std::string& explicit_path) {
  constexpr const char* kHelp =
      "run tools/setup.sh to install the CPU plugin, or name the file of another PJRT plugin";
  if (!explicit_path.empty()) {
    if (IsFile(explicit_path)) return explicit_path;
    return NotFound(fmt::format("no PJRT plugin at '{}': {}", explicit_path, kHelp));
  }
  if (const char* env = std::getenv("FOREBAY_PJRT_PLUGIN"); env != nullptr && *env != '\0') {
    if (IsFile(env)) return std::string(env);
    return NotFound(
        fmt::format("FOREBAY_PJRT_PLUGIN names '{}', which is not a file: {}", env, kHelp));
  }
  const std::string built = std::string(FOREBAY_DEPS_DIR) + "/pjrt/pjrt_cpu.so";
  if (IsFile(built)) return built;
  const std::string installed = InstalledPlugin();
  if (!installed.empty() && IsFile(installed)) return installed;
  return NotFound(
      fmt::format("no PJRT plugin: FOREBAY_PJRT_PLUGIN is not set, and neither '{}' nor "
                  "'{}' exists: {}",
                  built, installed, kHelp));
}

namespace pjrt {
namespace {

// XLA logs to stderr through absl; this variable, read when the library loads, is the only switch a
// C API user has (redirecting fd 2 would swallow other threads' output). 3 leaves fatal messages
// only. A value the user set stays. glibc's setenv is safe beside getenv in other threads only as
// long as nobody keeps walking `environ`; loading happens once, at the start of a process.
void QuietPluginLogs() { ::setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*replace=*/0); }

std::string Attributes(const Api& api) {
  PJRT_Plugin_Attributes_Args args = {};
  std::string out;
  if (!FB_PJRT(api, PJRT_Plugin_Attributes, args).ok()) return out;
  for (size_t i = 0; i < args.num_attributes; ++i) {
    const PJRT_NamedValue& value = args.attributes[i];
    out += fmt::format(";{}=", std::string(value.name, value.name_size));
    if (value.type == PJRT_NamedValue_kInt64) out += std::to_string(value.int64_value);
    if (value.type == PJRT_NamedValue_kString) out.append(value.string_value, value.value_size);
    if (value.type != PJRT_NamedValue_kInt64List) continue;
    for (size_t k = 0; k < value.value_size; ++k) {
      out += fmt::format("{}.", value.int64_array_value[k]);
    }
  }
  return out;
}

Result<std::unique_ptr<Plugin>> Load(const std::string& path) {
  QuietPluginLogs();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return InvalidArgument(fmt::format("'{}' is not a PJRT plugin, it does not load: {}", path,
                                       reason != nullptr ? reason : "unknown reason"));
  }
  // Every return below keeps the library loaded: see the class comment.
  using GetPjrtApi = const PJRT_Api* (*)();
  const auto get_api = reinterpret_cast<GetPjrtApi>(::dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    return InvalidArgument(fmt::format(
        "'{}' is not a PJRT plugin: the shared library has no function GetPjrtApi", path));
  }
  const PJRT_Api* table = get_api();
  FB_RETURN_IF_ERROR(CheckTable(table, path));
  const Api api(table);
  PJRT_Plugin_Initialize_Args initialize = {};
  FB_RETURN_IF_ERROR(
      FB_PJRT(api, PJRT_Plugin_Initialize, initialize).WithContext(fmt::format("'{}'", path)));

  const PJRT_Api_Version& version = table->pjrt_api_version;
  struct stat info = {};
  ::stat(path.c_str(), &info);
  std::string fingerprint =
      fmt::format("pjrt {}.{};size={};mtime={}.{}", version.major_version, version.minor_version,
                  info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  fingerprint += Attributes(api);
  return std::make_unique<Plugin>(Plugin{api, path, std::move(fingerprint)});
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Plugin>> plugins;  // by canonical path
};

// The process-wide list mirrors what dlopen does anyway; leaked, as plugin threads outlive main.
Registry& GlobalRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

}  // namespace

Status CheckTable(const PJRT_Api* table, const std::string& path) {
  if (table == nullptr) {
    return InvalidArgument(fmt::format("'{}': GetPjrtApi returned nothing", path));
  }
  const PJRT_Api_Version& version = table->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR) {
    return InvalidArgument(
        fmt::format("'{}' speaks PJRT API {}.{}, Forebay was built for {}.x: use a plugin of that "
                    "major version",
                    path, version.major_version, version.minor_version, PJRT_API_MAJOR));
  }
  const Api api(table);
  if (!api.Has(&PJRT_Api::PJRT_Error_Message) || !api.Has(&PJRT_Api::PJRT_Error_Destroy) ||
      !api.Has(&PJRT_Api::PJRT_Error_GetCode)) {
    return InvalidArgument(
        fmt::format("'{}' is not a usable PJRT plugin: it cannot report errors", path));
  }
  return OkStatus();
}

Result<const Plugin*> LoadPlugin(const std::string& path) {
  if (!IsFile(path)) return NotFound(fmt::format("no PJRT plugin at '{}'", path));
  std::error_code error;
  std::string canonical = std::filesystem::canonical(path, error).string();
  if (error) canonical = path;
  Registry& registry = GlobalRegistry();
  const std::lock_guard lock(registry.mutex);
  if (const auto it = registry.plugins.find(canonical); it != registry.plugins.end()) {
    return it->second.get();
  }
  FB_ASSIGN_OR_RETURN(std::unique_ptr<Plugin> plugin, Load(canonical));
  return registry.plugins.emplace(canonical, std::move(plugin)).first->second.get();
}

}  // namespace pjrt
}  // namespace forebay::xla
