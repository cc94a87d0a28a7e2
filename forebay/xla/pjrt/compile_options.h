// What the C API's compilers take: the program, and the serialized CompileOptionsProto, written by
// hand: a few fields do not justify protobuf as a dependency.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "forebay/xla/pjrt/api.h"

namespace forebay::xla::pjrt {

// One replica and one partition a device (a plugin's ids); no devices: one partition, on the
// plugin's default device. `xla_flags` are XLA debug options by name ("xla_cpu_enable_fast_math":
// "true").
std::string SerializeCompileOptions(const std::map<std::string, std::string>& xla_flags,
                                    std::span<const int64_t> devices = {});

// A program as MLIR text. `code` is that text: the C API takes it as mutable, and keeps pointing to
// it.
PJRT_Program MlirProgram(std::string& code);

}  // namespace forebay::xla::pjrt
