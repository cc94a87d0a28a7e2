// Host arrays to split Buffers. The way back is Buffer::ToHost, which returns the whole array, or
// Buffer::VisitParts: what one mesh wrote to a checkpoint, another one reads.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

// Splits `data` (row-major, the whole array of `shape`) over the mesh's devices. The memory is free
// for the caller on return. On a mesh of one device this is Client::FromHost, whatever axes the
// spec names: there is nothing to split. kInvalidArgument: a spec that does not fit, a wrong size,
// more devices than the client has.
Result<Buffer> SplitFromHost(Client& client, std::span<const std::byte> data, const Shape& shape,
                             const Sharding& sharding);

// The same without the whole array on the host: read(slice, part) fills in one part; one that
// several devices have is asked for once. An error of `read` is returned.
Result<Buffer> SplitFromParts(
    Client& client, const Shape& shape, const Sharding& sharding,
    const std::function<Status(const ShardSlice&, std::span<std::byte>)>& read);

// SplitFromHost of a typed array.
template <typename T>
Result<Buffer> SplitFromVector(Client& client, const std::vector<T>& values, const Shape& shape,
                               const Sharding& sharding) {
  return SplitFromHost(client, std::as_bytes(std::span<const T>(values)), shape, sharding);
}

}  // namespace forebay::xla
