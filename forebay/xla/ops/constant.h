// What other ops ask about constants. Private to xla/.
#pragma once

#include <optional>

#include "forebay/xla/graph.h"

namespace forebay::xla {

// The number of a scalar constant node; nullopt for any other node.
std::optional<double> ScalarConstantValue(const Value& x);

}  // namespace forebay::xla
