#include "forebay/xla/topology.h"

#include <fmt/core.h>
#include <stdlib.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/compile_options.h"
#include "forebay/xla/pjrt/executable_stats.h"
#include "forebay/xla/pjrt/plugin.h"

namespace forebay::xla {

Result<std::string> FindTpuCompiler(const std::string& explicit_path) {
  constexpr const char* kHelp =
      "run tools/setup_tpu_compiler.sh to install the TPU compiler (137 MB, once)";
  const auto is_file = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error);
  };
  if (!explicit_path.empty()) {
    if (is_file(explicit_path)) return explicit_path;
    return NotFound(fmt::format("no TPU compiler at '{}': {}", explicit_path, kHelp));
  }
  if (const char* env = std::getenv("FOREBAY_TPU_COMPILER"); env != nullptr && *env != '\0') {
    if (is_file(env)) return std::string(env);
    return NotFound(
        fmt::format("FOREBAY_TPU_COMPILER names '{}', which is not a file: {}", env, kHelp));
  }
  const std::string built = std::string(FOREBAY_DEPS_DIR) + "/tpu/libtpu.so";
  if (is_file(built)) return built;
  return NotFound(
      fmt::format("no TPU compiler: FOREBAY_TPU_COMPILER is not set and '{}' does not exist: {}",
                  built, kHelp));
}

namespace pjrt {
namespace {

class PjrtTopology final : public Topology {
 public:
  // Takes `topology`.
  PjrtTopology(const Plugin* plugin, PJRT_TopologyDescription* topology, std::string name)
      : api_(plugin->api), topology_(topology), name_(std::move(name)) {}
  ~PjrtTopology() override {
    PJRT_TopologyDescription_Destroy_Args args = {};
    args.topology = topology_;
    const Status status = FB_PJRT(api_, PJRT_TopologyDescription_Destroy, args);
    FB_CHECK(status.ok(), status.ToString());
  }
  PjrtTopology(const PjrtTopology&) = delete;
  PjrtTopology& operator=(const PjrtTopology&) = delete;

  const std::string& name() const override { return name_; }
  const std::vector<DeviceInfo>& devices() const override { return devices_; }
  Result<CompiledStats> Compile(const Program& program,
                                const std::map<std::string, std::string>& xla_flags) override;

  Status Describe();

 private:
  const Api api_;
  PJRT_TopologyDescription* const topology_;
  const std::string name_;
  std::vector<DeviceInfo> devices_;
};

Status PjrtTopology::Describe() {
  PJRT_TopologyDescription_GetDeviceDescriptions_Args all = {};
  all.topology = topology_;
  FB_RETURN_IF_ERROR(FB_PJRT(api_, PJRT_TopologyDescription_GetDeviceDescriptions, all));
  for (PJRT_DeviceDescription* description : std::span(all.descriptions, all.num_descriptions)) {
    PJRT_DeviceDescription_Id_Args id = {};
    id.device_description = description;
    FB_RETURN_IF_ERROR(FB_PJRT(api_, PJRT_DeviceDescription_Id, id));
    PJRT_DeviceDescription_Kind_Args kind = {};
    kind.device_description = description;
    FB_RETURN_IF_ERROR(FB_PJRT(api_, PJRT_DeviceDescription_Kind, kind));
    PJRT_DeviceDescription_ToString_Args text = {};
    text.device_description = description;
    FB_RETURN_IF_ERROR(FB_PJRT(api_, PJRT_DeviceDescription_ToString, text));
    devices_.push_back({.id = id.id,
                        .kind = std::string(kind.device_kind, kind.device_kind_size),
                        .description = std::string(text.to_string, text.to_string_size),
                        .addressable = false});
  }
  return OkStatus();
}

Result<CompiledStats> PjrtTopology::Compile(const Program& program,
                                            const std::map<std::string, std::string>& xla_flags) {
  const auto count = static_cast<size_t>(program.mesh.size());
  if (count > devices_.size()) {
    return InvalidArgument(
        fmt::format("program '{}' is for a mesh of {} devices ({}), the topology {} has {}",
                    program.name, count, program.mesh.ToString(), name_, devices_.size()));
  }
  if (!program.host_kernels.empty()) {
    return InvalidArgument(
        fmt::format("program '{}' calls the host kernel '{}', which the devices of {} cannot",
                    program.name, program.host_kernels[0].name, name_));
  }
  std::vector<int64_t> ids;
  for (size_t i = 0; count > 1 && i < count; ++i) ids.push_back(devices_[i].id);
  std::string code = program.stablehlo;
  PJRT_Program module = MlirProgram(code);
  const std::string options = SerializeCompileOptions(xla_flags, ids);
  PJRT_Compile_Args args = {};
  args.topology = topology_;
  args.program = &module;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  const auto start = std::chrono::steady_clock::now();
  FB_RETURN_IF_ERROR(
      FB_PJRT(api_, PJRT_Compile, args)
          .WithContext(fmt::format("program '{}' does not compile for {}", program.name, name_)));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  Result<CompiledStats> stats = ReadStats(api_, args.executable);
  PJRT_Executable_Destroy_Args destroy = {};
  destroy.executable = args.executable;
  const Status status = FB_PJRT(api_, PJRT_Executable_Destroy, destroy);
  FB_CHECK(status.ok(), status.ToString());
  if (!stats.ok()) return stats;
  CompiledStats out = *stats;
  out.compile_seconds = seconds.count();
  return out;
}

}  // namespace
}  // namespace pjrt

Result<std::unique_ptr<Topology>> Topology::Create(const TopologyOptions& options) {
  FB_ASSIGN_OR_RETURN(const std::string path, FindTpuCompiler(options.plugin_path));
  // When it loads, the TPU compiler asks a cloud machine's metadata server about the machine, and
  // waits; what these say it does not ask or complain about. They change no result (compared for
  // v4, v5e, v5p and v6e). Values that the user set stay.
  ::setenv("TPU_SKIP_MDS_QUERY", "1", /*replace=*/0);
  // No chip is used, so that others who compile at the same time are no reason to refuse.
  ::setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "true", /*replace=*/0);
  ::setenv("TPU_WORKER_HOSTNAMES", "localhost", /*replace=*/0);
  ::setenv("TPU_ACCELERATOR_TYPE", "v5p-16", /*replace=*/0);
  ::setenv("TPU_LOG_DIR", "disabled", /*replace=*/0);
  FB_ASSIGN_OR_RETURN(const pjrt::Plugin* plugin, pjrt::LoadPlugin(path));
  PJRT_TopologyDescription_Create_Args args = {};
  args.topology_name = options.name.data();
  args.topology_name_size = options.name.size();
  const Status status = FB_PJRT(plugin->api, PJRT_TopologyDescription_Create, args);
  if (!status.ok()) {
    return Status(status.code() == StatusCode::kUnimplemented ? StatusCode::kUnimplemented
                                                              : StatusCode::kInvalidArgument,
                  fmt::format("no topology \"{}\" (one is \"v5p:4x4x8\": a TPU generation and the "
                              "shape of a slice): {}",
                              options.name, status.message()));
  }
  auto topology = std::make_unique<pjrt::PjrtTopology>(plugin, args.topology, options.name);
  FB_RETURN_IF_ERROR(topology->Describe());
  return std::unique_ptr<Topology>(std::move(topology));
}

}  // namespace forebay::xla
