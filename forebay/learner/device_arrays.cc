#include "forebay/learner/device_arrays.h"

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/sharded_buffer.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

using weights::HostTensor;
using weights::TensorMap;

void DeviceArrays::AppendTo(Arguments* arguments) {
  for (xla::Buffer& buffer : buffers) arguments->push_back(&buffer);
}

Status DeviceArrays::Upload(xla::Client& client, const xla::Mesh& mesh, const TensorMap& tensors) {
  std::vector<xla::Buffer> uploaded;
  for (const auto& spec : specs) {
    const auto found = tensors.find(spec.name);
    FB_CHECK(found != tensors.end(), spec.name);
    FB_ASSIGN_OR_RETURN(auto buffer, xla::SplitFromHost(client, found->second.bytes(), spec.shape,
                                                        {mesh, spec.partition}));
    uploaded.push_back(std::move(buffer));
  }
  buffers = std::move(uploaded);
  return OkStatus();
}

Status DeviceArrays::UploadZeros(xla::Client& client, const xla::Mesh& mesh) {
  std::vector<xla::Buffer> uploaded;
  for (const auto& spec : specs) {
    const std::vector<std::byte> zeros(static_cast<size_t>(spec.shape.bytes()));
    FB_ASSIGN_OR_RETURN(auto buffer,
                        xla::SplitFromHost(client, zeros, spec.shape, {mesh, spec.partition}));
    uploaded.push_back(std::move(buffer));
  }
  buffers = std::move(uploaded);
  return OkStatus();
}

Result<TensorMap> DeviceArrays::ToHost() const { return learner::ToHost(specs, buffers); }

Result<TensorMap> ToHost(const std::vector<models::ParamSpec>& specs,
                         const std::vector<xla::Buffer>& buffers) {
  TensorMap tensors;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::span<std::byte> bytes;
    HostTensor tensor = HostTensor::Allocate(specs[i].shape, &bytes);
    FB_RETURN_IF_ERROR(buffers[i].ToHost(bytes));
    tensors.emplace(specs[i].name, std::move(tensor));
  }
  return tensors;
}

}  // namespace forebay::learner
