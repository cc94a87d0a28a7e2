// Exchange: tokens travel to the devices that have their experts, and the experts' sums come back.
// Private to models/.
//
// A device sends each token once to each device with at least one of its experts, with the numbers
// and weights of all its experts; there SortedExperts takes those that are at hand. Shapes are
// fixed: a round moves up to C tokens from each device to each. How many rounds it takes is data,
// the same on all devices (the largest count of all); what an even choice of experts sends fits in
// one. Forward and backward run the same rounds.
//
// Legend: N tokens, D width, K experts a token, n devices along "expert", E experts at hand, C
// tokens of a round.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/models/experts/sorted.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models::experts {

// Of N tokens that choose K experts evenly over n devices, those that need one of them, and a
// quarter more; at most N.
int64_t ExpectedCapacity(int64_t tokens, int64_t top_k, int64_t devices);

class Exchange {
 public:
  Exchange(int64_t tokens, int64_t top_k, int64_t own_experts, int64_t devices, int64_t capacity);

  // As SortedExperts, but that experts [N, K] count those of all devices.
  xla::Value Forward(std::span<const xla::Value> xs) const;
  xla::Values Backward(std::span<const xla::Value> xs, xla::Value d_out,
                       const xla::Values& sums) const;

 private:
  struct Plan;
  struct Round;
  Plan MakePlan(xla::Value experts_NK) const;
  Round MakeRound(const Plan& plan, xla::Value number) const;
  // Rows of x [N, ...] for each device -> those that arrived here, [n * C, ...]; and rows that were
  // made here -> back where they came from, [n * C, ...].
  xla::Value Send(const Round& round, xla::Value x) const;
  xla::Value Return(xla::Value rows) const;
  xla::Values Arrived(const Round& round, std::span<const xla::Value> xs) const;
  xla::Value Collect(const Round& round, xla::Value back) const;

  int64_t tokens_, top_k_, own_experts_, devices_, capacity_, rounds_max_;
  SortedExperts sorted_;
};

}  // namespace forebay::models::experts
