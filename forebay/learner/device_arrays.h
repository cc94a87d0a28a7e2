// DeviceArrays: named arrays on a device, in a fixed order. Private to the learner.
#pragma once

#include <cstddef>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::learner {

// Arguments of an execution.
using Arguments = std::vector<xla::Buffer*>;

struct DeviceArrays {
  std::vector<models::ParamSpec> specs;
  std::vector<xla::Buffer> buffers;  // one a spec

  size_t size() const { return specs.size(); }
  void AppendTo(Arguments* arguments);

  // By spec name. Block. CHECK that every spec has its tensor.
  Status Upload(xla::Client& client, const weights::TensorMap& tensors);
  Status UploadZeros(xla::Client& client);
  Result<weights::TensorMap> ToHost() const;
};

// Host copies of results that are named as `specs`. Blocks.
Result<weights::TensorMap> ToHost(const std::vector<models::ParamSpec>& specs,
                                  const std::vector<xla::Buffer>& buffers);

}  // namespace forebay::learner
