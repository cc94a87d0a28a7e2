// CountLoop: a While that counts, for loops whose length is data.
#pragma once

#include <functional>
#include <span>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models {

// Runs `body(i, state) -> state` for i = first, first + 1, ... while `more(i)` (scalar kPred) and
// returns the last state. No gradient.
inline xla::Values CountLoop(
    xla::Value first, const xla::Values& state, const std::function<xla::Value(xla::Value)>& more,
    const std::function<xla::Values(xla::Value, std::span<const xla::Value>)>& body) {
  xla::Values all = {first};
  all.insert(all.end(), state.begin(), state.end());
  xla::Values result =
      xla::While([&](std::span<const xla::Value> in) -> xla::Values { return {more(in[0])}; },
                 [&](std::span<const xla::Value> in) {
                   xla::Values next = body(in[0], in.subspan(1));
                   next.insert(next.begin(), in[0] + 1);
                   return next;
                 },
                 all);
  result.erase(result.begin());
  return result;
}

}  // namespace forebay::models
