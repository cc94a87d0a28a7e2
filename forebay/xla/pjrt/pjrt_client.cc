#include "forebay/xla/pjrt/pjrt_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/ffi/registry.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/client_state.h"
#include "forebay/xla/pjrt/compile_options.h"
#include "forebay/xla/pjrt/executable.h"
#include "forebay/xla/pjrt/program_cache.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla::pjrt {
namespace {

// Code compiled for a CPU uses its vector extensions, and is cut for its number of threads: another
// machine that shares the cache folder must miss.
std::string HostCpu() {
  std::string out = fmt::format("threads={}", std::thread::hardware_concurrency());
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  bool model = false;
  bool flags = false;
  while ((!model || !flags) && std::getline(file, line)) {
    const bool is_model = line.starts_with("model name") || line.starts_with("CPU part");
    const bool is_flags = line.starts_with("flags") || line.starts_with("Features");
    if ((is_model && !model) || (is_flags && !flags)) out += ";" + line;
    model = model || is_model;
    flags = flags || is_flags;
  }
  return out;
}

// Length-prefixed, so that different lists never join into equal text.
void Append(std::string& out, std::string_view part) {
  out += std::to_string(part.size());
  out += ':';
  out += part;
}

}  // namespace

Program CopyProgram(const Shape& shape) {
  std::string type = "tensor<";
  for (const int64_t dim : shape.dims) type += fmt::format("{}x", dim);
  type += fmt::format("{}>", Name(shape.dtype));
  return {.name = "forebay_copy",
          .stablehlo =
              fmt::format("module @forebay_copy {{\n  func.func public @main(%x: {0}) -> {0} {{\n"
                          "    return %x : {0}\n  }}\n}}\n",
                          type),
          .arguments = {shape},
          .argument_names = {"x"},
          .results = {shape},
          .donated_to = {-1}};
}

PjrtClient::PjrtClient(std::shared_ptr<ClientState> state, DiskCache disk_cache,
                       int cached_programs_max)
    : state_(std::move(state)),
      disk_cache_(std::move(disk_cache)),
      cached_programs_max_(static_cast<size_t>(cached_programs_max)) {}

Status PjrtClient::Describe() {
  const Api& api = state_->api;
  PJRT_Client_PlatformName_Args name = {};
  name.client = state_->client;
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Client_PlatformName, name));
  platform_.assign(name.platform_name, name.platform_name_size);
  state_->is_cpu = platform_ == "cpu";
  PJRT_Client_PlatformVersion_Args version = {};
  version.client = state_->client;
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Client_PlatformVersion, version));
  platform_version_.assign(version.platform_version, version.platform_version_size);

  PJRT_Client_Devices_Args all = {};
  all.client = state_->client;
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Client_Devices, all));
  for (PJRT_Device* device : std::span(all.devices, all.num_devices)) {
    PJRT_Device_GetDescription_Args get = {};
    get.device = device;
    FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Device_GetDescription, get));
    PJRT_DeviceDescription_Id_Args id = {};
    id.device_description = get.device_description;
    FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_DeviceDescription_Id, id));
    PJRT_DeviceDescription_Kind_Args kind = {};
    kind.device_description = get.device_description;
    FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_DeviceDescription_Kind, kind));
    PJRT_DeviceDescription_ToString_Args text = {};
    text.device_description = get.device_description;
    FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_DeviceDescription_ToString, text));
    PJRT_Device_IsAddressable_Args addressable = {};
    addressable.device = device;
    FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Device_IsAddressable, addressable));
    devices_.push_back({.id = id.id,
                        .kind = std::string(kind.device_kind, kind.device_kind_size),
                        .description = std::string(text.to_string, text.to_string_size),
                        .addressable = addressable.is_addressable});
  }
  Append(machine_, state_->plugin->fingerprint);
  Append(machine_, platform_);
  Append(machine_, platform_version_);
  for (const DeviceInfo& device : devices_) Append(machine_, device.kind);
  if (platform_ == "cpu") Append(machine_, HostCpu());
  return OkStatus();
}

std::pair<int, int> PjrtClient::api_version() const {
  const PJRT_Api_Version& version = state_->api.table().pjrt_api_version;
  return {version.major_version, version.minor_version};
}

bool PjrtClient::calls_host_kernels() const {
  return state_->is_cpu && ffi::CanRegister(state_->api);
}

int64_t PjrtClient::live_buffers() const {
  return state_->live_buffers.load(std::memory_order_relaxed);
}

CompileCounters PjrtClient::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

Result<Buffer> PjrtClient::FromHost(std::span<const std::byte> data, const Shape& shape,
                                    int device) {
  if (device < 0 || static_cast<size_t>(device) >= state_->devices.size()) {
    return InvalidArgument(
        fmt::format("FromHost: no device {}, this client has {}", device, state_->devices.size()));
  }
  if (static_cast<int64_t>(data.size()) != shape.bytes()) {
    return InvalidArgument(fmt::format("FromHost: {} takes {} bytes, {} were given",
                                       shape.ToString(), shape.bytes(), data.size()));
  }
  return BufferFromHost(state_, data.data(), shape, device);
}

Result<Buffer> PjrtClient::Copy(const Buffer& buffer) {
  if (buffer.empty()) {
    return InvalidArgument("Copy: the buffer is empty (moved from, or donated to a program)");
  }
  const Buffer::Impl& impl = *buffer.impl();
  if (impl.state != state_) return InvalidArgument("Copy: the buffer belongs to another client");
  const auto copy_part = [&](size_t part) -> Result<Buffer> {
    const int device = impl.device + static_cast<int>(part);
    PJRT_Buffer_CopyToDevice_Args args = {};
    args.buffer = impl.parts[part];
    args.dst_device = state_->devices[static_cast<size_t>(device)];
    FB_RETURN_IF_ERROR(FB_PJRT(state_->api, PJRT_Buffer_CopyToDevice, args));
    const Shape shape = impl.sharding == nullptr
                            ? impl.shape
                            : LocalShape(impl.sharding->mesh, impl.sharding->spec, impl.shape);
    return MakeBuffer(state_, args.dst_buffer, shape, device);
  };
  if (impl.sharding != nullptr) {
    std::vector<Buffer> parts;
    for (size_t i = 0; i < impl.parts.size(); ++i) {
      FB_ASSIGN_OR_RETURN(Buffer part, copy_part(i));
      parts.push_back(std::move(part));
    }
    return Buffer::FromParts(std::move(parts), impl.shape, *impl.sharding);
  }
  Result<Buffer> copied = copy_part(0);
  // The C API lets a plugin refuse a copy within one device (the CPU plugin makes it).
  if (copied.ok() || impl.device != 0) return copied;
  FB_ASSIGN_OR_RETURN(const std::shared_ptr<Executable> copy, Compile(CopyProgram(impl.shape), {}));
  // Execute empties only donated arguments, and this program has none.
  Buffer* const argument = const_cast<Buffer*>(&buffer);
  FB_ASSIGN_OR_RETURN(std::vector<Buffer> results, copy->Execute(std::span(&argument, 1)));
  return std::move(results[0]);
}

Hash128 PjrtClient::Key(const Program& program,
                        const std::map<std::string, std::string>& xla_flags) const {
  // Everything that a cached Executable answers for, not the text alone: two Programs may share
  // their text and differ in what they declare.
  std::string text = machine_;
  Append(text, program.name);
  Append(text, program.stablehlo);
  Append(text, std::to_string(program.arguments.size()));
  for (const Shape& shape : program.arguments) Append(text, shape.ToString());
  for (const std::string& name : program.argument_names) Append(text, name);
  Append(text, std::to_string(program.results.size()));
  for (const Shape& shape : program.results) Append(text, shape.ToString());
  for (const int result : program.donated_to) Append(text, std::to_string(result));
  Append(text, program.mesh.ToString());
  for (const PartitionSpec& spec : program.argument_specs) Append(text, spec.ToString());
  for (const PartitionSpec& spec : program.result_specs) Append(text, spec.ToString());
  Append(text, CompileOptions(program, xla_flags));
  return HashBytes(text);
}

std::span<const int64_t> PjrtClient::DevicesOf(const Program& program) const {
  const auto count = static_cast<size_t>(program.mesh.size());
  return std::span(state_->device_ids).first(count > 1 ? count : 0);
}

std::string PjrtClient::CompileOptions(const Program& program,
                                       const std::map<std::string, std::string>& xla_flags) const {
  const std::span<const int64_t> devices = DevicesOf(program);
  std::map<std::string, std::string> flags = xla_flags;
  // A collective that waits 40 s for its partners ends the process. Many virtual devices on a few
  // busy cores can be that far apart.
  if (state_->is_cpu && !devices.empty()) {
    flags.try_emplace("xla_cpu_collective_call_terminate_timeout_seconds", "600");
  }
  return SerializeCompileOptions(flags, devices);
}

Result<std::shared_ptr<Executable>> PjrtClient::Compile(
    const Program& program, const std::map<std::string, std::string>& xla_flags) {
  if (program.mesh.size() > static_cast<int64_t>(state_->devices.size())) {
    return InvalidArgument(fmt::format(
        "program '{}' is for a mesh of {} devices ({}), this client has {}", program.name,
        program.mesh.size(), program.mesh.ToString(), state_->devices.size()));
  }
  if (!program.host_kernels.empty()) {
    if (!calls_host_kernels()) {
      return Unimplemented(fmt::format(
          "program '{}' calls the host kernel '{}', which only a CPU plugin of PJRT API 0.115 or "
          "newer does; this is '{}' of API {}.{}",
          program.name, program.host_kernels[0].name, platform_, api_version().first,
          api_version().second));
    }
    // Before it is loaded from the disk, too: loading looks the names up.
    FB_RETURN_IF_ERROR(ffi::Register(state_->api, program.host_kernels)
                           .WithContext(fmt::format("program '{}'", program.name)));
  }
  const Hash128 key = Key(program, xla_flags);
  std::promise<Compiled> promise;
  std::shared_future<Compiled> earlier;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = programs_.find(key); it != programs_.end()) {
      earlier = it->second.compiled;
      it->second.last_use = ++uses_;
      ++counters_.memory_hits;
    } else {
      EvictIfFull();
      programs_.emplace(key, Entry{promise.get_future().share(), ++uses_});
    }
  }
  if (earlier.valid()) return earlier.get();
  Compiled compiled = LoadOrCompile(program, xla_flags, key);
  if (!compiled.ok()) {
    // Those who wait get the error; the next request tries again.
    const std::lock_guard lock(mutex_);
    programs_.erase(key);
  }
  promise.set_value(compiled);
  return compiled;
}

void PjrtClient::EvictIfFull() {
  if (programs_.size() < cached_programs_max_) return;
  const auto oldest = std::ranges::min_element(
      programs_, {}, [](const auto& entry) { return entry.second.last_use; });
  programs_.erase(oldest);
}

PjrtClient::Compiled PjrtClient::LoadOrCompile(const Program& program,
                                               const std::map<std::string, std::string>& xla_flags,
                                               const Hash128& key) {
  if (const std::optional<std::string> serialized = disk_cache_.Read(key)) {
    if (Compiled loaded = Load(program, *serialized); loaded.ok()) {
      const std::lock_guard lock(mutex_);
      ++counters_.disk_hits;
      return loaded;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  Compiled compiled = CompileNow(program, xla_flags);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  {
    const std::lock_guard lock(mutex_);
    ++counters_.compiled;
    counters_.compile_seconds += seconds.count();
  }
  if (!compiled.ok()) return compiled;
  if (disk_cache_.enabled()) {
    const Result<std::string> serialized =
        static_cast<const PjrtExecutable&>(**compiled).Serialize();
    if (serialized.ok()) disk_cache_.Write(key, *serialized);
  }
  return compiled;
}

PjrtClient::Compiled PjrtClient::Load(const Program& program, const std::string& serialized) {
  PJRT_Executable_DeserializeAndLoad_Args args = {};
  args.client = state_->client;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  FB_RETURN_IF_ERROR(FB_PJRT(state_->api, PJRT_Executable_DeserializeAndLoad, args));
  FB_ASSIGN_OR_RETURN(std::shared_ptr<Executable> executable,
                      PjrtExecutable::Create(state_, args.loaded_executable, program));
  return executable;
}

PjrtClient::Compiled PjrtClient::CompileNow(const Program& program,
                                            const std::map<std::string, std::string>& xla_flags) {
  std::string code = program.stablehlo;
  PJRT_Program module = MlirProgram(code);
  const std::string options = CompileOptions(program, xla_flags);
  PJRT_Client_Compile_Args args = {};
  args.client = state_->client;
  args.program = &module;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  FB_RETURN_IF_ERROR(FB_PJRT(state_->api, PJRT_Client_Compile, args)
                         .WithContext(fmt::format("program '{}' does not compile", program.name)));
  FB_ASSIGN_OR_RETURN(std::shared_ptr<Executable> executable,
                      PjrtExecutable::Create(state_, args.executable, program));
  return executable;
}

}  // namespace forebay::xla::pjrt
