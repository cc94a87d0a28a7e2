// TracedCost: what a program asks of each device, counted from the graph. Unlike a compiler's cost
// model it counts the body of a loop as often as the loop runs it, and it needs no compiler.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forebay/xla/sharding.h"

namespace forebay::xla {

// All uses of one kind of collective along the same axes.
struct CollectiveUse {
  std::string op;  // "AllGather", as in xla/collectives.h (PMean is a Psum)
  Axes axes;
  int64_t count = 0;
  // What each device sends, all together, when the devices form a ring (a Psum sends each byte
  // twice).
  double sent_bytes = 0;

  friend bool operator==(const CollectiveUse&, const CollectiveUse&) = default;
};

// Of one run of a program. In the bodies of ShardMaps these are the sizes of one device's parts.
// An upper bound: the compiler may find more to share or to drop. Of a Cond, the costlier branch.
struct TracedCost {
  double dot_flops = 0;  // of matrix products, 2 a multiply-add; other ops are not counted
  std::vector<CollectiveUse> collectives = {};
  bool has_while = false;  // a While was counted as one step

  int64_t collective_count() const;
  double sent_bytes() const;
  // Adds `other`, `times` times.
  void Add(const TracedCost& other, int64_t times = 1);

  friend bool operator==(const TracedCost&, const TracedCost&) = default;
};

}  // namespace forebay::xla
