// ShareHost, GiveHost: an array of the host as an array of a device that can use it where it lies.
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

// The same of bytes that are the device's from here on: the result may be donated, and programs
// then write where it lies. `bytes` is let go when neither it nor what was made in its place is
// needed.
Result<Buffer> GiveHost(Client& client, std::shared_ptr<std::byte> bytes, const Shape& shape);

}  // namespace forebay::xla
