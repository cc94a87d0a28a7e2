#include "forebay/xla/sharded_buffer.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <functional>
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
  const bool whole = sharding.mesh.size() == 1;
  if (!whole) {
    FB_RETURN_IF_ERROR(CheckSpec(sharding.mesh, sharding.spec, shape).WithContext("SplitFromHost"));
  }
  if (static_cast<int64_t>(data.size()) != shape.bytes()) {
    return InvalidArgument(fmt::format("SplitFromHost: {} takes {} bytes, {} were given",
                                       shape.ToString(), shape.bytes(), data.size()));
  }
  if (whole) return client.FromHost(data, shape);
  return SplitFromParts(client, shape, sharding,
                        [&](const ShardSlice& slice, std::span<std::byte> part) {
                          ReadSlice(data, shape, slice, part);
                          return OkStatus();
                        });
}

Result<Buffer> SplitFromParts(
    Client& client, const Shape& shape, const Sharding& sharding,
    const std::function<Status(const ShardSlice&, std::span<std::byte>)>& read) {
  FB_RETURN_IF_ERROR(CheckSpec(sharding.mesh, sharding.spec, shape).WithContext("SplitFromParts"));
  const Shape local = LocalShape(sharding.mesh, sharding.spec, shape);
  const std::vector<ShardSlice> slices = ShardSlices(sharding.mesh, sharding.spec, shape);
  std::vector<std::byte> bytes(static_cast<size_t>(local.bytes()));
  std::vector<Buffer> parts(slices.size());
  // Each group has the devices of one slice.
  const Axes repeated = sharding.mesh.Others(sharding.spec.axes());
  for (const std::vector<int64_t>& group : sharding.mesh.Groups(repeated)) {
    FB_RETURN_IF_ERROR(read(slices[static_cast<size_t>(group[0])], bytes));
    for (const int64_t device : group) {
      FB_ASSIGN_OR_RETURN(parts[static_cast<size_t>(device)],
                          client.FromHost(bytes, local, static_cast<int>(device)));
    }
  }
  return Buffer::FromParts(std::move(parts), shape, sharding);
}

}  // namespace forebay::xla
