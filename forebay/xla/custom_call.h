// CallHost: the op that calls a HostKernel (xla/host_kernel.h).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

// What a call returns and passes on besides its operands.
struct HostCallOptions {
  std::vector<Shape> results;
  std::map<std::string, double> numbers = {};  // names as in C; HostCall::number
  // Results that lie where an operand lay, of its shape: the kernel finds there what the operand
  // held and writes what changes. XLA copies an operand first that is used after the call.
  struct InPlace {
    int operand, result;
  };
  std::vector<InPlace> in_place = {};
};

// kernel(xs) -> one Value a result. In the body of a ShardMap every device calls it on its own
// parts. It has no gradient: wrap it in a CustomVjp. Costs nothing in Program::cost.
// Errors (on the graph): no operand, no result, a dtype that is neither f32, bf16 nor s32, a name
// that is none, an in_place of other shapes or twice the same.
Values CallHost(const HostKernel& kernel, std::span<const Value> xs,
                const HostCallOptions& options);

}  // namespace forebay::xla
