// DeviceArrays: named arrays on a device, in a fixed order. Private to the learner.
#pragma once

#include <cstddef>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

// Arguments of an execution.
using Arguments = std::vector<xla::Buffer*>;

struct DeviceArrays {
  std::vector<models::ParamSpec> specs;
  std::vector<xla::Buffer> buffers;  // one a spec

  size_t size() const { return specs.size(); }
  void AppendTo(Arguments* arguments);

  // By spec name, split over the mesh as the specs say. Block. CHECK that every spec has its
  // tensor.
  Status Upload(xla::Client& client, const xla::Mesh& mesh, const weights::TensorMap& tensors);
  Status UploadZeros(xla::Client& client, const xla::Mesh& mesh);
  Result<weights::TensorMap> ToHost() const;
};

// Host copies of results that are named as `specs`. Blocks.
Result<weights::TensorMap> ToHost(const std::vector<models::ParamSpec>& specs,
                                  const std::vector<xla::Buffer>& buffers);

}  // namespace forebay::learner
