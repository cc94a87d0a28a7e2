// The message for an array that cannot be split. Private to xla/.
#pragma once

#include <cstdint>
#include <string>

#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

// "dimension 1 of f32[8,10] has size 10, which the axis tensor of size 4 does not divide; ..."
std::string NotDivisibleText(const Shape& shape, int64_t dim, const Axes& axes, const Mesh& mesh);

}  // namespace forebay::xla
