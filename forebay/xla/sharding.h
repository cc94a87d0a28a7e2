// Mesh, PartitionSpec, Sharding: how arrays lie over several devices. docs/sharding.md explains
// them with an example.
//
// Values: they copy and compare. Device i of a Mesh is the client's addressable device i; devices
// are numbered with the last axis running fastest, so neighbours along it are neighbours in number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

// The axes that Forebay's own rules use. A Mesh may have others.
inline constexpr const char* kDataAxis = "data";
inline constexpr const char* kFsdpAxis = "fsdp";
inline constexpr const char* kExpertAxis = "expert";
inline constexpr const char* kContextAxis = "context";
inline constexpr const char* kTensorAxis = "tensor";

// Names of mesh axes, the first one slowest. Written as "tensor" or {"data", "fsdp"}.
class Axes {
 public:
  Axes() = default;
  Axes(const char* name) : names_{name} {}             // NOLINT(google-explicit-constructor)
  Axes(std::string name) : names_{std::move(name)} {}  // NOLINT(google-explicit-constructor)
  Axes(std::initializer_list<std::string_view> names) : names_(names.begin(), names.end()) {}
  explicit Axes(std::vector<std::string> names) : names_(std::move(names)) {}

  const std::vector<std::string>& names() const { return names_; }
  bool empty() const { return names_.empty(); }
  // "fsdp", "data x fsdp"; "no axis" when empty.
  std::string ToString() const;

  friend bool operator==(const Axes&, const Axes&) = default;

 private:
  std::vector<std::string> names_;
};

struct MeshAxis {
  std::string name;
  int64_t size;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// Sizes of Forebay's axes, for Mesh::Create.
struct MeshSizes {
  int64_t data = 1;
  int64_t fsdp = 1;
  int64_t expert = 1;
  int64_t context = 1;
  int64_t tensor = 1;  // runs fastest: it talks most
};

class Mesh {
 public:
  Mesh() = default;  // one device, no axes

  // kInvalidArgument: no axis name, a repeated one, a size below 1, more than 2^20 devices, or more
  // than 32 axes.
  static Result<Mesh> Create(std::vector<MeshAxis> axes);
  // All five of Forebay's axes, those of size 1 too, so that specs may name them.
  // kInvalidArgument also when the product is not `devices`; the message says what would be.
  static Result<Mesh> Create(const MeshSizes& sizes, int64_t devices);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  // The number of devices.
  int64_t size() const { return size_; }
  // Index of an axis, or -1.
  int AxisNumber(std::string_view name) const;

  // kInvalidArgument: an axis that the mesh does not have, or one named twice.
  Status Check(const Axes& axes) const;
  // The functions below CHECK that the axes are the mesh's.
  // Devices along `axes`: the product of their sizes.
  int64_t Size(const Axes& axes) const;
  // The position of a device along `axes`: 0 ... Size(axes) - 1.
  int64_t Index(int64_t device, const Axes& axes) const;
  // Devices that differ only along `axes`: Size(axes) in each group, by Index.
  std::vector<std::vector<int64_t>> Groups(const Axes& axes) const;
  // The axes that are not in `axes`, in the mesh's order.
  Axes Others(const Axes& axes) const;

  // "data=2 x fsdp=4"; "one device".
  std::string ToString() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<MeshAxis> axes_;
  int64_t size_ = 1;
};

// For each dimension of an array, the axes over which it is split; dimensions past the end of the
// list are whole. An array is repeated along the axes that its spec does not name.
// PartitionSpec{"fsdp", {}, {"data", "tensor"}} splits dimension 0 over fsdp and 2 over both
// others.
class PartitionSpec {
 public:
  PartitionSpec() = default;  // every device has all of it
  PartitionSpec(std::initializer_list<Axes> dims);
  explicit PartitionSpec(std::vector<Axes> dims);

  // Without trailing dimensions that are whole.
  const std::vector<Axes>& dims() const { return dims_; }
  // The axes of dimension i (empty: whole).
  const Axes& dim(int64_t i) const;
  // All axes that are named.
  Axes axes() const;
  // "[fsdp, -, data x tensor]"
  std::string ToString() const;

  friend bool operator==(const PartitionSpec&, const PartitionSpec&) = default;

 private:
  std::vector<Axes> dims_;
};

// Whether arrays of this (whole) shape can be split so. kInvalidArgument names the axis, the sizes
// and what would be right.
Status CheckSpec(const Mesh& mesh, const PartitionSpec& spec, const Shape& shape);
// The shape of one device's part of an array that passed CheckSpec, and back.
Shape LocalShape(const Mesh& mesh, const PartitionSpec& spec, Shape shape);
Shape GlobalShape(const Mesh& mesh, const PartitionSpec& spec, Shape local);

// The part of an array that one device has: starts[i] ... starts[i] + sizes[i] of dimension i.
struct ShardSlice {
  std::vector<int64_t> starts;
  std::vector<int64_t> sizes;

  friend bool operator==(const ShardSlice&, const ShardSlice&) = default;
};
// One a device, in the mesh's order. Checkpoints read only these parts of a file. CHECKs CheckSpec.
std::vector<ShardSlice> ShardSlices(const Mesh& mesh, const PartitionSpec& spec,
                                    const Shape& shape);
// Copies a part out of a row-major array of `shape`, and back into it. The sizes of the spans must
// be those of the array and of the part (CHECKed).
void ReadSlice(std::span<const std::byte> array, const Shape& shape, const ShardSlice& slice,
               std::span<std::byte> part);
void WriteSlice(std::span<std::byte> array, const Shape& shape, const ShardSlice& slice,
                std::span<const std::byte> part);

struct Sharding {
  Mesh mesh;
  PartitionSpec spec;

  std::string ToString() const;  // "[fsdp, -] over fsdp=2 x tensor=4"
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

}  // namespace forebay::xla
