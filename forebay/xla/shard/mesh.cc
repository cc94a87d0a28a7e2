#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

constexpr int64_t kDevicesMax = int64_t{1} << 20;
constexpr size_t kAxesMax = 32;  // sets of axes are bits of a word

bool IsName(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && std::ranges::all_of(name, allowed);
}

}  // namespace

std::string Axes::ToString() const {
  if (names_.empty()) return "no axis";
  std::string out;
  for (const std::string& name : names_) {
    if (!out.empty()) out += " x ";
    out += name;
  }
  return out;
}

Result<Mesh> Mesh::Create(std::vector<MeshAxis> axes) {
  if (axes.size() > kAxesMax) {
    return InvalidArgument(
        fmt::format("a mesh of {} axes: it may have at most {}", axes.size(), kAxesMax));
  }
  Mesh mesh;
  for (MeshAxis& axis : axes) {
    if (!IsName(axis.name)) {
      return InvalidArgument(
          fmt::format("\"{}\" is no name of a mesh axis: letters, digits and _", axis.name));
    }
    if (mesh.AxisNumber(axis.name) >= 0) {
      return InvalidArgument(fmt::format("the mesh axis {} is there twice", axis.name));
    }
    if (axis.size < 1) {
      return InvalidArgument(
          fmt::format("the mesh axis {} has size {}; it must be at least 1", axis.name, axis.size));
    }
    if (axis.size > kDevicesMax / mesh.size_) {
      return InvalidArgument(fmt::format("a mesh of more than {} devices", kDevicesMax));
    }
    mesh.size_ *= axis.size;
    mesh.axes_.push_back(std::move(axis));
  }
  return mesh;
}

Result<Mesh> Mesh::Create(const MeshSizes& sizes, int64_t devices) {
  FB_ASSIGN_OR_RETURN(Mesh mesh, Create({{kDataAxis, sizes.data},
                                         {kFsdpAxis, sizes.fsdp},
                                         {kExpertAxis, sizes.expert},
                                         {kContextAxis, sizes.context},
                                         {kTensorAxis, sizes.tensor}}));
  if (mesh.size() == devices) return mesh;
  const int64_t rest = mesh.size() / sizes.fsdp;
  const std::string hint = devices > 0 && devices % rest == 0
                               ? fmt::format("fsdp={} would use all of them", devices / rest)
                               : fmt::format("the product of the sizes must be {}", devices);
  return InvalidArgument(fmt::format("the mesh {} takes {} devices, but there are {}: {}",
                                     mesh.ToString(), mesh.size(), devices, hint));
}

int Mesh::AxisNumber(std::string_view name) const {
  const auto it = std::ranges::find(axes_, name, &MeshAxis::name);
  return it == axes_.end() ? -1 : static_cast<int>(it - axes_.begin());
}

Status Mesh::Check(const Axes& axes) const {
  for (size_t i = 0; i < axes.names().size(); ++i) {
    const std::string& name = axes.names()[i];
    if (AxisNumber(name) < 0) {
      return InvalidArgument(fmt::format("the mesh ({}) has no axis \"{}\"", ToString(), name));
    }
    if (std::ranges::count(axes.names(), name) > 1) {
      return InvalidArgument(fmt::format("the axis {} is named twice", name));
    }
  }
  return OkStatus();
}

int64_t Mesh::Size(const Axes& axes) const {
  int64_t size = 1;
  for (const std::string& name : axes.names()) {
    const int number = AxisNumber(name);
    FB_CHECK(number >= 0, name);
    size *= axes_[static_cast<size_t>(number)].size;
  }
  return size;
}

int64_t Mesh::Index(int64_t device, const Axes& axes) const {
  FB_CHECK(device >= 0 && device < size_, "device of the mesh");
  std::vector<int64_t> position(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    position[i] = device % axes_[i].size;
    device /= axes_[i].size;
  }
  int64_t index = 0;
  for (const std::string& name : axes.names()) {
    const int number = AxisNumber(name);
    FB_CHECK(number >= 0, name);
    const auto i = static_cast<size_t>(number);
    index = index * axes_[i].size + position[i];
  }
  return index;
}

std::vector<std::vector<int64_t>> Mesh::Groups(const Axes& axes) const {
  const Axes others = Others(axes);
  const auto members = static_cast<size_t>(Size(axes));
  std::vector<std::vector<int64_t>> groups(static_cast<size_t>(Size(others)),
                                           std::vector<int64_t>(members));
  for (int64_t device = 0; device < size_; ++device) {
    groups[static_cast<size_t>(Index(device, others))][static_cast<size_t>(Index(device, axes))] =
        device;
  }
  return groups;
}

Axes Mesh::Others(const Axes& axes) const {
  std::vector<std::string> others;
  for (const MeshAxis& axis : axes_) {
    if (std::ranges::count(axes.names(), axis.name) == 0) others.push_back(axis.name);
  }
  return Axes(std::move(others));
}

std::string Mesh::ToString() const {
  std::string out;
  for (const MeshAxis& axis : axes_) {
    if (!out.empty()) out += " x ";
    out += fmt::format("{}={}", axis.name, axis.size);
  }
  return out.empty() ? "one device" : out;
}

}  // namespace forebay::xla
