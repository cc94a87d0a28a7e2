// Text of stablehlo.while, shared by Scan and While. Private to xla/.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {

using LoopNames = std::span<const std::string>;

// Prints a loop whose state starts as `initial`; `condition` prints its test and returns the name
// of the pred, `body` returns the names of the next state. Returns the names of the final state.
std::vector<std::string> EmitWhile(Emitter& out, std::span<const std::string> initial,
                                   std::span<const Shape> shapes,
                                   const std::function<std::string(LoopNames)>& condition,
                                   const std::function<std::vector<std::string>(LoopNames)>& body);

// "a, b, c"
std::string JoinNames(std::span<const std::string> names);

}  // namespace forebay::xla
