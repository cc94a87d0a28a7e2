#include "forebay/xla/pjrt/compile_options.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace forebay::xla::pjrt {
namespace {

// Field numbers of xla/pjrt/proto/compile_options.proto (and xla/xla_data.proto).
constexpr int kExecutableBuildOptions = 3;  // of CompileOptionsProto
constexpr int kEnvOptionOverrides = 7;   // of CompileOptionsProto: map<string, OptionOverrideProto>
constexpr int kNumReplicas = 4;          // of ExecutableBuildOptionsProto
constexpr int kNumPartitions = 5;        // of ExecutableBuildOptionsProto
constexpr int kUseSpmdPartitioning = 6;  // of ExecutableBuildOptionsProto
constexpr int kDeviceAssignment = 9;     // of ExecutableBuildOptionsProto
constexpr int kUseShardyPartitioner = 19;  // of ExecutableBuildOptionsProto
constexpr int kReplicaCount = 1;           // of DeviceAssignmentProto
constexpr int kComputationCount = 2;       // of DeviceAssignmentProto
constexpr int kComputationDevices = 3;     // of DeviceAssignmentProto, one a partition
constexpr int kReplicaDeviceIds = 1;       // of ComputationDevice
constexpr int kStringField = 1;            // of OptionOverrideProto, a oneof
constexpr int kBoolField = 2;              // of OptionOverrideProto

void Varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void Integer(std::string& out, int field, uint64_t value) {
  Varint(out, static_cast<uint64_t>(field) << 3);
  Varint(out, value);
}

void Bytes(std::string& out, int field, std::string_view bytes) {
  Varint(out, (static_cast<uint64_t>(field) << 3) | 2);
  Varint(out, bytes.size());
  out += bytes;
}

}  // namespace

std::string SerializeCompileOptions(const std::map<std::string, std::string>& xla_flags,
                                    std::span<const int64_t> devices) {
  std::string build;
  Integer(build, kNumReplicas, 1);
  Integer(build, kNumPartitions, devices.empty() ? 1 : devices.size());
  if (!devices.empty()) {
    Integer(build, kUseSpmdPartitioning, 1);
    std::string assignment;
    Integer(assignment, kReplicaCount, 1);
    Integer(assignment, kComputationCount, devices.size());
    for (const int64_t device : devices) {
      std::string replicas;
      Integer(replicas, kReplicaDeviceIds, static_cast<uint64_t>(device));
      Bytes(assignment, kComputationDevices, replicas);
    }
    Bytes(build, kDeviceAssignment, assignment);
    Integer(build, kUseShardyPartitioner, 1);
  }
  std::string out;
  Bytes(out, kExecutableBuildOptions, build);
  for (const auto& [name, value] : xla_flags) {
    std::string override;
    // XLA parses numbers and enums from text, but refuses "true" as the text of a bool.
    if (value == "true" || value == "false") {
      Integer(override, kBoolField, value == "true" ? 1 : 0);
    } else {
      Bytes(override, kStringField, value);
    }
    std::string entry;
    Bytes(entry, 1, name);
    Bytes(entry, 2, override);
    Bytes(out, kEnvOptionOverrides, entry);
  }
  return out;
}

PJRT_Program MlirProgram(std::string& code) {
  static constexpr std::string_view kFormat = "mlir";
  PJRT_Program program = {};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = code.data();
  program.code_size = code.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  return program;
}

}  // namespace forebay::xla::pjrt
