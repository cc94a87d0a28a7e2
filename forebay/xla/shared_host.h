// ShareHost: an array of the host as an array of a device that can read it where it lies.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

// Row-major `bytes` on the client's first device, without a copy where the plugin can (CPUs, and 64
// bytes of alignment), else as FromHost. `owner` keeps the bytes alive and is let go when the
// plugin needs them no longer; until then nobody may write to them, and the result must not be
// donated. Errors as FromHost's.
Result<Buffer> ShareHost(Client& client, std::span<const std::byte> bytes, const Shape& shape,
                         std::shared_ptr<const void> owner);

}  // namespace forebay::xla
