#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/divisible.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

// Calls copy(offset in the array, offset in the part, bytes) for each contiguous run of the slice.
template <typename Copy>
void ForEachRun(const Shape& shape, const ShardSlice& slice, size_t array_bytes, size_t part_bytes,
                const Copy& copy) {
  const size_t rank = shape.dims.size();
  FB_CHECK(slice.starts.size() == rank && slice.sizes.size() == rank, "the slice's rank");
  int64_t run = ByteSize(shape.dtype);
  size_t outer = rank;  // dimensions before it are looped over
  bool whole = true;
  while (outer > 0 && whole) {
    --outer;
    run *= slice.sizes[outer];
    whole = slice.sizes[outer] == shape.dims[outer];
  }
  int64_t part_elements = ByteSize(shape.dtype);
  for (size_t i = 0; i < rank; ++i) {
    FB_CHECK(slice.starts[i] >= 0 && slice.starts[i] + slice.sizes[i] <= shape.dims[i], "slice");
    part_elements *= slice.sizes[i];
  }
  FB_CHECK(static_cast<int64_t>(array_bytes) == shape.bytes(), "the array's size");
  FB_CHECK(static_cast<int64_t>(part_bytes) == part_elements, "the part's size");
  if (part_elements == 0) return;

  std::vector<int64_t> strides(rank);
  int64_t stride = ByteSize(shape.dtype);
  for (size_t i = rank; i-- > 0;) {
    strides[i] = stride;
    stride *= shape.dims[i];
  }
  int64_t base = 0;
  for (size_t i = 0; i < rank; ++i) base += slice.starts[i] * strides[i];
  std::vector<int64_t> position(outer, 0);
  for (int64_t at = 0; at < part_elements; at += run) {
    int64_t offset = base;
    for (size_t i = 0; i < outer; ++i) offset += position[i] * strides[i];
    copy(static_cast<size_t>(offset), static_cast<size_t>(at), static_cast<size_t>(run));
    for (size_t i = outer; i-- > 0;) {
      if (++position[i] < slice.sizes[i]) break;
      position[i] = 0;
    }
  }
}

}  // namespace

PartitionSpec::PartitionSpec(std::vector<Axes> dims) : dims_(std::move(dims)) {
  while (!dims_.empty() && dims_.back().empty()) dims_.pop_back();
}

PartitionSpec::PartitionSpec(std::initializer_list<Axes> dims)
    : PartitionSpec(std::vector<Axes>(dims)) {}

const Axes& PartitionSpec::dim(int64_t i) const {
  static const Axes* const kWhole = new Axes;
  return i < static_cast<int64_t>(dims_.size()) ? dims_[static_cast<size_t>(i)] : *kWhole;
}

Axes PartitionSpec::axes() const {
  std::vector<std::string> names;
  for (const Axes& axes : dims_) {
    names.insert(names.end(), axes.names().begin(), axes.names().end());
  }
  return Axes(std::move(names));
}

std::string PartitionSpec::ToString() const {
  std::string out = "[";
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (i > 0) out += ", ";
    out += dims_[i].empty() ? "-" : dims_[i].ToString();
  }
  return out + "]";
}

std::string Sharding::ToString() const { return spec.ToString() + " over " + mesh.ToString(); }

Status CheckSpec(const Mesh& mesh, const PartitionSpec& spec, const Shape& shape) {
  const auto where = [&] {
    return fmt::format("spec {} for {}", spec.ToString(), shape.ToString());
  };
  if (static_cast<int64_t>(spec.dims().size()) > shape.rank()) {
    return InvalidArgument(fmt::format("{}: the spec has {} dimensions, the array {}", where(),
                                       spec.dims().size(), shape.rank()));
  }
  FB_RETURN_IF_ERROR(mesh.Check(spec.axes()).WithContext(where()));
  for (size_t i = 0; i < spec.dims().size(); ++i) {
    const Axes& axes = spec.dims()[i];
    const int64_t size = shape.dims[i];
    if (axes.empty() || size % mesh.Size(axes) == 0) continue;
    return InvalidArgument(
        fmt::format("spec {}: {}", spec.ToString(),
                    NotDivisibleText(shape, static_cast<int64_t>(i), axes, mesh)));
  }
  return OkStatus();
}

Shape LocalShape(const Mesh& mesh, const PartitionSpec& spec, Shape shape) {
  for (size_t i = 0; i < spec.dims().size(); ++i) shape.dims[i] /= mesh.Size(spec.dims()[i]);
  return shape;
}

Shape GlobalShape(const Mesh& mesh, const PartitionSpec& spec, Shape local) {
  for (size_t i = 0; i < spec.dims().size(); ++i) local.dims[i] *= mesh.Size(spec.dims()[i]);
  return local;
}

std::vector<ShardSlice> ShardSlices(const Mesh& mesh, const PartitionSpec& spec,
                                    const Shape& shape) {
  const Status status = CheckSpec(mesh, spec, shape);
  FB_CHECK(status.ok(), status.message());
  const Shape local = LocalShape(mesh, spec, shape);
  std::vector<ShardSlice> slices;
  slices.reserve(static_cast<size_t>(mesh.size()));
  for (int64_t device = 0; device < mesh.size(); ++device) {
    ShardSlice slice{.starts = std::vector<int64_t>(shape.dims.size(), 0), .sizes = local.dims};
    for (size_t i = 0; i < spec.dims().size(); ++i) {
      slice.starts[i] = mesh.Index(device, spec.dims()[i]) * local.dims[i];
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

void ReadSlice(std::span<const std::byte> array, const Shape& shape, const ShardSlice& slice,
               std::span<std::byte> part) {
  ForEachRun(shape, slice, array.size(), part.size(), [&](size_t from, size_t to, size_t bytes) {
    std::memcpy(part.data() + to, array.data() + from, bytes);
  });
}

void WriteSlice(std::span<std::byte> array, const Shape& shape, const ShardSlice& slice,
                std::span<const std::byte> part) {
  ForEachRun(shape, slice, array.size(), part.size(), [&](size_t to, size_t from, size_t bytes) {
    std::memcpy(array.data() + to, part.data() + from, bytes);
  });
}

}  // namespace forebay::xla
