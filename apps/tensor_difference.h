// Where two sets of named tensors differ, byte for byte.
#pragma once

#include <string>

#include "forebay/weights/snapshot.h"

namespace forebay::apps {

// "" if they are equal in names, shapes and bytes, else the first difference as a phrase: "tensor
// model.norm.weight differs first in element 3: 0.5 and 0.25".
std::string FirstTensorDifference(const weights::TensorMap& left, const weights::TensorMap& right);

}  // namespace forebay::apps
