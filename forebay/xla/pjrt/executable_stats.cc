#include "forebay/xla/pjrt/executable_stats.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/hlo_collectives.h"
#include "forebay/xla/topology.h"

namespace forebay::xla {
namespace pjrt {
namespace {

// Fills in the cost model's figures. It writes "no value" as something negative.
void AddCost(const std::map<std::string, double>& cost, CompiledStats& stats) {
  const auto find = [&](const char* name) -> std::optional<double> {
    const auto at = cost.find(name);
    return at == cost.end() || at->second < 0 ? std::nullopt : std::optional<double>(at->second);
  };
  stats.flops = find("flops");
  stats.bytes_accessed = find("bytes accessed");
  stats.optimal_seconds = find("optimal_seconds");
}

Result<PJRT_Executable_GetCompiledMemoryStats_Args> CallMemory(const Api& api,
                                                               PJRT_Executable* executable) {
  PJRT_Executable_GetCompiledMemoryStats_Args args = {};
  args.executable = executable;
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Executable_GetCompiledMemoryStats, args));
  return args;
}

MemoryStats ToMemoryStats(const PJRT_Executable_GetCompiledMemoryStats_Args& args) {
  return {.argument_bytes = args.argument_size_in_bytes,
          .output_bytes = args.output_size_in_bytes,
          .temp_bytes = args.temp_size_in_bytes,
          .alias_bytes = args.alias_size_in_bytes,
          .code_bytes = args.generated_code_size_in_bytes};
}

}  // namespace

Result<MemoryStats> ReadMemory(const Api& api, PJRT_Executable* executable) {
  FB_ASSIGN_OR_RETURN(const auto args, CallMemory(api, executable));
  return ToMemoryStats(args);
}

std::map<std::string, double> ReadCost(const Api& api, PJRT_Executable* executable) {
  std::map<std::string, double> out;
  PJRT_Executable_GetCostAnalysis_Args args = {};
  args.executable = executable;
  if (!FB_PJRT(api, PJRT_Executable_GetCostAnalysis, args).ok()) return out;
  for (size_t i = 0; i < args.num_properties; ++i) {
    const PJRT_NamedValue& value = args.properties[i];
    std::string name(value.name, value.name_size);
    if (value.type == PJRT_NamedValue_kFloat)
      out[std::move(name)] = value.float_value;
    else if (value.type == PJRT_NamedValue_kInt64)
      out[std::move(name)] = static_cast<double>(value.int64_value);
  }
  return out;
}

std::optional<CollectiveSites> ReadCollectives(const Api& api, PJRT_Executable* executable) {
  PJRT_Program program = {};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  PJRT_Executable_OptimizedProgram_Args args = {};
  args.executable = executable;
  args.program = &program;
  // The first call says how long it is.
  if (!FB_PJRT(api, PJRT_Executable_OptimizedProgram, args).ok()) return std::nullopt;
  std::string module(program.code_size, '\0');
  program.code = module.data();
  if (!FB_PJRT(api, PJRT_Executable_OptimizedProgram, args).ok()) return std::nullopt;
  if (std::string_view(program.format, program.format_size) != "hlo_with_config") {
    return std::nullopt;
  }
  return CountCollectives(module);
}

Result<CompiledStats> ReadStats(const Api& api, PJRT_Executable* executable) {
  CompiledStats stats;
  FB_ASSIGN_OR_RETURN(const auto args, CallMemory(api, executable));
  stats.memory = ToMemoryStats(args);
  stats.reported_peak_bytes = args.peak_memory_in_bytes;
  AddCost(ReadCost(api, executable), stats);
  stats.collectives = ReadCollectives(api, executable);
  return stats;
}

}  // namespace pjrt

std::map<std::string, std::string> OverlapFlags(const std::string& device_kind) {
  std::map<std::string, std::string> flags;
  if (device_kind != "TPU v5" && device_kind != "TPU v6 lite") return flags;
  for (const char* collective : {"all_gather", "2d_all_gather", "3d_all_gather", "reduce_scatter",
                                 "nd_reduce_scatter", "all_reduce"}) {
    flags[std::string("xla_tpu_enable_sparse_core_collective_offload_") + collective] = "true";
  }
  flags["xla_tpu_use_tc_device_shape_on_sc"] = "true";
  return flags;
}

Result<CompiledStats> StatsOf(const Executable& executable) {
  CompiledStats stats;
  FB_ASSIGN_OR_RETURN(stats.memory, executable.memory());
  pjrt::AddCost(executable.cost(), stats);
  return stats;
}

}  // namespace forebay::xla
