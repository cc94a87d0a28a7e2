// The serialized CompileOptionsProto that PJRT_Client_Compile takes, written by hand: a few fields
// do not justify protobuf as a dependency.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace forebay::xla::pjrt {

// One replica and one partition a device (a plugin's ids); no devices: one partition, on the
// plugin's default device. `xla_flags` are XLA debug options by name ("xla_cpu_enable_fast_math":
// "true").
std::string SerializeCompileOptions(const std::map<std::string, std::string>& xla_flags,
                                    std::span<const int64_t> devices = {});

}  // namespace forebay::xla::pjrt
