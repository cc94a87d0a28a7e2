#include "forebay/xla/ffi/registry.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/pjrt/api.h"

namespace forebay::xla::ffi {
namespace {

// The plugin's extension for foreign functions. Before API 0.115 the arguments of a registration
// had another form.
constexpr int kMinorApiMin = 115;

struct RegisterArgs {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  uint32_t traits;
};
constexpr size_t kRegisterArgsBytes = offsetof(RegisterArgs, traits) + sizeof(uint32_t);

struct Extension {
  PJRT_Extension_Base base;
  void* type_register;
  void* user_data_add;
  PJRT_Error* (*register_handler)(RegisterArgs*);
};

const Extension* FindExtension(const pjrt::Api& api) {
  const PJRT_Api& table = api.table();
  if (table.pjrt_api_version.major_version != 0 ||
      table.pjrt_api_version.minor_version < kMinorApiMin) {
    return nullptr;
  }
  for (const PJRT_Extension_Base* at = table.extension_start; at != nullptr; at = at->next) {
    if (at->type != PJRT_Extension_Type_FFI || at->struct_size < sizeof(Extension)) continue;
    const auto* extension = reinterpret_cast<const Extension*>(at);
    return extension->register_handler == nullptr ? nullptr : extension;
  }
  return nullptr;
}

// The plugin keeps its own list for as long as the process lives; so does this one, leaked, as the
// plugin's threads outlive main.
struct Known {
  std::mutex mutex;
  std::map<std::pair<const Extension*, std::string>, const void*> functions;
};
Known& GlobalKnown() {
  static auto* const known = new Known;
  return *known;
}

}  // namespace

bool CanRegister(const pjrt::Api& api) { return FindExtension(api) != nullptr; }

Status Register(const pjrt::Api& api, std::span<const HostKernel> kernels) {
  if (kernels.empty()) return OkStatus();
  const Extension* extension = FindExtension(api);
  if (extension == nullptr) {
    return Unimplemented(fmt::format(
        "the PJRT plugin (API {}.{}) cannot call '{}': it takes no functions of this process, or "
        "in a form that is not known here",
        api.table().pjrt_api_version.major_version, api.table().pjrt_api_version.minor_version,
        kernels[0].name));
  }
  constexpr std::string_view kPlatform = "Host";
  Known& known = GlobalKnown();
  const std::lock_guard lock(known.mutex);
  for (const HostKernel& kernel : kernels) {
    auto* const function = reinterpret_cast<void*>(kernel.entry);
    const auto [at, is_new] = known.functions.try_emplace({extension, kernel.name}, function);
    if (!is_new) {
      if (at->second == function) continue;
      return InvalidArgument(
          fmt::format("two host kernels are named '{}': a name has one function", kernel.name));
    }
    RegisterArgs args = {.struct_size = kRegisterArgsBytes,
                         .target_name = kernel.name.data(),
                         .target_name_size = kernel.name.size(),
                         .handler = function,
                         .platform_name = kPlatform.data(),
                         .platform_name_size = kPlatform.size(),
                         .traits = 0};
    const Status status =
        api.ToStatus(extension->register_handler(&args), "PJRT_FFI_Register_Handler");
    if (!status.ok()) {
      known.functions.erase(at);
      return status.WithContext(kernel.name);
    }
  }
  return OkStatus();
}

}  // namespace forebay::xla::ffi
