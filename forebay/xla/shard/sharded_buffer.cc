#include "forebay/xla/sharded_buffer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

Result<Buffer> SplitFromHost(Client& client, std::span<const std::byte> data, const Shape& shape,
                             const Sharding& sharding) {
  FB_RETURN_IF_ERROR(CheckSpec(sharding.mesh, sharding.spec, shape).WithContext("SplitFromHost"));
  if (static_cast<int64_t>(data.size()) != shape.bytes()) {
    return InvalidArgument(fmt::format("SplitFromHost: {} takes {} bytes, {} were given",
                                       shape.ToString(), shape.bytes(), data.size()));
  }
  const Shape local = LocalShape(sharding.mesh, sharding.spec, shape);
  const std::vector<ShardSlice> slices = ShardSlices(sharding.mesh, sharding.spec, shape);
  std::vector<std::byte> copy;
  if (local != shape) copy.resize(static_cast<size_t>(local.bytes()));
  std::vector<Buffer> parts;
  for (size_t i = 0; i < slices.size(); ++i) {
    std::span<const std::byte> part = data;
    if (local != shape) {
      ReadSlice(data, shape, slices[i], copy);
      part = copy;
    }
    FB_ASSIGN_OR_RETURN(Buffer buffer, client.FromHost(part, local, static_cast<int>(i)));
    parts.push_back(std::move(buffer));
  }
  return Buffer::FromParts(std::move(parts), shape, sharding);
}

}  // namespace forebay::xla
