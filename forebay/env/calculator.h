// The tool "calculator": arithmetic for models that cannot do it in their head.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/env/tools.h"

namespace forebay::env {

// The value of an expression of numbers, + - * / // % ** and parentheses, with Python's precedence,
// whole numbers without a point. kInvalidArgument with a sentence for the
// model.
Result<std::string> Calculate(std::string_view expression);

// {"expression": "(1 + 2) * 3"} -> 9
std::unique_ptr<ToolProvider> MakeCalculator();

}  // namespace forebay::env
