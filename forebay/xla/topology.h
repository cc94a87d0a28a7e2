// Topology: devices that are not here, to compile for. And what the compiler says about a program.
// A process that compiles for a topology should not run on TPUs too: the compiler is then set up
// for a machine without them.
//
// The TPU compiler runs on any x86 machine: `v5p:4x4x8` gives 128 devices, and a program for them
// compiles to the code and the memory plan that a pod would run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"

namespace forebay::xla {

// The collectives in a compiled program; those in a loop's body count once.
struct CollectiveSites {
  int64_t blocking = 0;    // nothing else runs meanwhile
  int64_t overlapped = 0;  // run beside computation
};

// Of one compiled program, on each device.
struct CompiledStats {
  MemoryStats memory = {};
  // The compiler's own peak, where it reports one; else 0.
  int64_t reported_peak_bytes = 0;
  // Its cost model, where it has one (the TPU compiler; not the CPU's). The body of a loop (Scan)
  // is counted once.
  std::optional<double> flops;
  std::optional<double> bytes_accessed;
  std::optional<double> optimal_seconds;
  std::optional<CollectiveSites> collectives;  // of a Topology's programs
  double compile_seconds = 0;                  // 0 for a program of a Client

  // What must fit: arguments, results that do not reuse them, temporaries.
  int64_t total_bytes() const {
    return memory.argument_bytes + memory.output_bytes - memory.alias_bytes + memory.temp_bytes;
  }
};

// Of a program that a Client compiled.
Result<CompiledStats> StatsOf(const Executable& executable);

// XLA flags (Client::Compile) with which devices of this kind (DeviceInfo::kind) run collectives
// beside computation. On TPUs with sparse cores, v5p and v6e, those carry them out; tried with the
// compiler, not on hardware. Other kinds: none.
std::map<std::string, std::string> OverlapFlags(const std::string& device_kind);

// The TPU compiler to use: `explicit_path` if given, else $FOREBAY_TPU_COMPILER, else the one that
// tools/setup_tpu_compiler.sh installed. kNotFound says where it looked and how to install it.
Result<std::string> FindTpuCompiler(const std::string& explicit_path);

struct TopologyOptions {
  std::string plugin_path;  // see FindTpuCompiler
  std::string name;         // "v5p:4x4x8": a TPU generation and the shape of the pod slice
};

// Thread-safe; Compile blocks (seconds to minutes).
class Topology {
 public:
  // kNotFound: no compiler. kInvalidArgument: it is no plugin, or does not know the name (its own
  // words follow).
  static Result<std::unique_ptr<Topology>> Create(const TopologyOptions& options);
  virtual ~Topology() = default;

  virtual const std::string& name() const = 0;
  // Their kind is the compiler's name for the chip ("TPU v5" for v5p); none is addressable.
  virtual const std::vector<DeviceInfo>& devices() const = 0;

  // Compiles for the first devices, as many as the program's mesh has. `xla_flags` as in
  // Client::Compile.
  // Errors: the compiler's text (kResourceExhausted when the program does not fit in memory), with
  // the program's name; kInvalidArgument for a mesh larger than the topology or host
  // kernels.
  virtual Result<CompiledStats> Compile(
      const Program& program, const std::map<std::string, std::string>& xla_flags = {}) = 0;
};

}  // namespace forebay::xla
