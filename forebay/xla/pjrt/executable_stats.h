// What the compiler says about an executable, loaded or not. Private to xla/.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/topology.h"

namespace forebay::xla::pjrt {

Result<MemoryStats> ReadMemory(const Api& api, PJRT_Executable* executable);
// Empty where the plugin has none.
std::map<std::string, double> ReadCost(const Api& api, PJRT_Executable* executable);
// None where the plugin does not show the program that it made.
std::optional<CollectiveSites> ReadCollectives(const Api& api, PJRT_Executable* executable);
Result<CompiledStats> ReadStats(const Api& api, PJRT_Executable* executable);

}  // namespace forebay::xla::pjrt
