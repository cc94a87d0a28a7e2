// The serialized CompileOptionsProto that PJRT_Client_Compile takes, written by hand: three fields
// do not justify protobuf as a dependency.
#pragma once

#include <map>
#include <string>

namespace forebay::xla::pjrt {

// One replica, one partition. `xla_flags` are XLA debug options by name
// ("xla_cpu_enable_fast_math": "true").
std::string SerializeCompileOptions(const std::map<std::string, std::string>& xla_flags);

}  // namespace forebay::xla::pjrt
