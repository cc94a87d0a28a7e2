// Reads from a compiled module how its collectives run. Private to xla/.
#pragma once

#include <optional>
#include <string_view>

#include "forebay/xla/topology.h"

namespace forebay::xla::pjrt {

// `module` is a serialized HloModuleProtoWithConfig, as PJRT_Executable_OptimizedProgram gives it.
// None where it cannot be read as one.
std::optional<CollectiveSites> CountCollectives(std::string_view module);

}  // namespace forebay::xla::pjrt
