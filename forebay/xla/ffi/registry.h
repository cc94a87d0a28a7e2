// Registering HostKernels with a plugin. Private to xla/.
#pragma once

#include <span>

#include "forebay/base/status.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/pjrt/api.h"

namespace forebay::xla::ffi {

// Whether a plugin with this function table takes kernels for the CPU in the form that we know.
bool CanRegister(const pjrt::Api& api);

// Makes `kernels` known to the plugin, once a process; those it knows already cost a look-up.
// Thread-safe. kInvalidArgument: a name that another function has. kUnimplemented: !CanRegister.
Status Register(const pjrt::Api& api, std::span<const HostKernel> kernels);

}  // namespace forebay::xla::ffi
