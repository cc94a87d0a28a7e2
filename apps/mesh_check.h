// Whether the learner's mesh fits the model and the devices, asked before weights are read or
// programs compiled. (control/config.h checks what the configuration alone decides.)
#pragma once

#include <cstdint>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/models/model.h"

namespace forebay::apps {

// kInvalidArgument names the key of [mesh], the number of the model that it does not divide, and
// the values that would do.
Status CheckMesh(const control::Config& config, const models::Model& model);

// The same for the number of devices that the learner will have.
Status CheckDeviceCount(const control::Config& config, int64_t devices);

// Counts the devices of the learner's plugin, if the mesh wants more than one. Blocks while the
// plugin starts. Errors: also the plugin's.
Status CheckDevices(const control::Config& config);

}  // namespace forebay::apps
