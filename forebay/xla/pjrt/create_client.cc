// Client::Create: options to a ready PjrtClient.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/client_state.h"
#include "forebay/xla/pjrt/pjrt_client.h"
#include "forebay/xla/pjrt/plugin.h"
#include "forebay/xla/pjrt/program_cache.h"

namespace forebay::xla {
namespace pjrt {
namespace {

Result<std::shared_ptr<ClientState>> CreateState(const Plugin& plugin, int cpu_device_count) {
  constexpr std::string_view kCount = "cpu_device_count";
  PJRT_NamedValue option = {};
  option.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  option.name = kCount.data();
  option.name_size = kCount.size();
  option.type = PJRT_NamedValue_kInt64;
  option.int64_value = cpu_device_count;
  option.value_size = 1;
  PJRT_Client_Create_Args args = {};
  args.create_options = &option;
  args.num_options = cpu_device_count > 0 ? 1 : 0;
  FB_RETURN_IF_ERROR(
      FB_PJRT(plugin.api, PJRT_Client_Create, args)
          .WithContext(fmt::format("the PJRT plugin '{}' has no usable device", plugin.path)));
  auto state = std::make_shared<ClientState>(&plugin, args.client);

  PJRT_Client_AddressableDevices_Args devices = {};
  devices.client = args.client;
  FB_RETURN_IF_ERROR(FB_PJRT(plugin.api, PJRT_Client_AddressableDevices, devices));
  state->devices.assign(devices.addressable_devices,
                        devices.addressable_devices + devices.num_addressable_devices);
  if (state->devices.empty()) {
    return FailedPrecondition(fmt::format("the PJRT plugin '{}' found no device", plugin.path));
  }
  for (PJRT_Device* device : state->devices) {
    PJRT_Device_GetDescription_Args get = {};
    get.device = device;
    FB_RETURN_IF_ERROR(FB_PJRT(plugin.api, PJRT_Device_GetDescription, get));
    PJRT_DeviceDescription_Id_Args id = {};
    id.device_description = get.device_description;
    FB_RETURN_IF_ERROR(FB_PJRT(plugin.api, PJRT_DeviceDescription_Id, id));
    state->device_ids.push_back(id.id);
  }
  return state;
}

Result<std::unique_ptr<PjrtClient>> CreateClient(const Plugin& plugin, int cpu_device_count,
                                                 const DiskCache& cache, int cached_programs_max) {
  FB_ASSIGN_OR_RETURN(std::shared_ptr<ClientState> state, CreateState(plugin, cpu_device_count));
  auto client = std::make_unique<PjrtClient>(std::move(state), cache, cached_programs_max);
  FB_RETURN_IF_ERROR(client->Describe());
  return client;
}

}  // namespace
}  // namespace pjrt

Result<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  if (options.cpu_device_count < 0) {
    return InvalidArgument(
        fmt::format("cpu_device_count is {}, it must not be negative", options.cpu_device_count));
  }
  if (options.cached_programs_max < 1) {
    return InvalidArgument(fmt::format("cached_programs_max is {}, it must be at least 1",
                                       options.cached_programs_max));
  }
  FB_ASSIGN_OR_RETURN(const std::string path, FindPlugin(options.plugin_path));
  FB_ASSIGN_OR_RETURN(const pjrt::Plugin* plugin, pjrt::LoadPlugin(path));
  FB_ASSIGN_OR_RETURN(const pjrt::DiskCache cache, pjrt::DiskCache::Open(options.cache_dir));
  FB_ASSIGN_OR_RETURN(
      std::unique_ptr<pjrt::PjrtClient> client,
      pjrt::CreateClient(*plugin, options.cpu_device_count, cache, options.cached_programs_max));
  // Some CPU plugins show several virtual devices unless told otherwise. One machine is one device;
  // only the platform's name says that the option exists, hence the second try (2 ms).
  if (options.cpu_device_count == 0 && client->platform() == "cpu" &&
      client->devices().size() > 1) {
    client.reset();
    FB_ASSIGN_OR_RETURN(client, pjrt::CreateClient(*plugin, 1, cache, options.cached_programs_max));
  }
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace forebay::xla
