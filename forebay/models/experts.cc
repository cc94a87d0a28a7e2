#include "forebay/models/experts.h"

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "forebay/models/experts/exchange.h"
#include "forebay/models/experts/sorted.h"
#include "forebay/models/layers.h"
#include "forebay/models/parallel.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {

using experts::Exchange;
using experts::SortedExperts;
using xla::DType;
using xla::Value;
using xla::Values;

namespace {

bool Fits(Value x_ND, const Routing& routing, const ExpertWeights& w) {
  const xla::Dims& in = w.gate_EFD.dims();
  return in.size() == 3 && w.up_EFD.dims() == in && in[2] == x_ND.dim(1) &&
         w.down_EDF.dims() == xla::Dims{in[0], in[2], in[1]} &&
         routing.experts_NK.dims() == routing.weights_NK.dims() &&
         routing.experts_NK.dim(0) == x_ND.dim(0);
}

Value Misfit(Value x_ND, const Routing& routing, const ExpertWeights& w) {
  return x_ND.graph()->Fail(
      fmt::format("MixExperts: x {}, experts {}, weights {}, gate {}, up {} and down {} do not "
                  "belong together",
                  x_ND.shape().ToString(), routing.experts_NK.shape().ToString(),
                  routing.weights_NK.shape().ToString(), w.gate_EFD.shape().ToString(),
                  w.up_EFD.shape().ToString(), w.down_EDF.shape().ToString()));
}

// `mixer` has Forward and Backward of SortedExperts.
template <typename Mixer>
Value Mix(const Mixer& mixer, Value x_ND, const Routing& routing, const ExpertWeights& w) {
  const Value xs[] = {x_ND,       routing.weights_NK, routing.experts_NK,
                      w.gate_EFD, w.up_EFD,           w.down_EDF};
  return xla::CustomVjp(
      [mixer](std::span<const Value> v) -> Values { return {As(mixer.Forward(v), v[0].dtype())}; },
      [mixer](std::span<const Value> v, std::span<const Value>,
              std::span<const Value> d_out) -> Values {
        const Values d = mixer.Backward(v, d_out[0], SortedExperts::NoSums(v));
        return {
            As(d[0], v[0].dtype()), d[1], Value(), As(d[2], v[3].dtype()), As(d[3], v[4].dtype()),
            As(d[4], v[5].dtype())};
      },
      xs)[0];
}

}  // namespace

Routing Route(Value x_ND, Value router_ED, int64_t top_k, bool normalize) {
  xla::Graph& graph = *x_ND.graph();
  if (!graph.status().ok()) {
    const Value poison = graph.Fail("see the first error");
    return {poison, poison};
  }
  const Value logits = Project(As(x_ND, DType::kF32), As(router_ED, DType::kF32));
  const Value probabilities = xla::Softmax(logits, -1);
  const Value order = xla::SortDescending(xla::StopGradient(probabilities)).second;
  const Value chosen = xla::Slice(order, 1, 0, top_k);
  Values parts;
  for (int64_t k = 0; k < top_k; ++k) {
    const Value expert = xla::Squeeze(xla::Slice(chosen, 1, k, k + 1), 1);
    parts.push_back(xla::ExpandDims(xla::TakeAlongLast(probabilities, expert), 1));
  }
  const Value weights = xla::Concatenate(parts, 1);
  return {chosen, normalize ? weights / xla::ReduceSum(weights, {1}, true) : weights};
}

Value MixExperts(Value x_ND, const Routing& routing, const ExpertWeights& weights) {
  xla::Graph& graph = *x_ND.graph();
  if (!graph.status().ok()) return graph.Fail("see the first error");
  if (!Fits(x_ND, routing, weights)) return Misfit(x_ND, routing, weights);
  return Mix(SortedExperts(x_ND.dim(0), routing.experts_NK.dim(1), weights.gate_EFD.dim(0)), x_ND,
             routing, weights);
}

int64_t ExchangeCapacity(int64_t tokens, int64_t top_k, int64_t devices) {
  return experts::ExpectedCapacity(tokens, top_k, devices);
}

Value SpreadExperts(const Parallel& parallel, Value x_ND, const Routing& routing,
                    const ExpertWeights& weights, int64_t capacity) {
  xla::Graph& graph = *x_ND.graph();
  if (!graph.status().ok()) return graph.Fail("see the first error");
  const int64_t devices = parallel.on() ? xla::AxisSize(graph, xla::kExpertAxis) : 1;
  if (devices == 1) return MixExperts(x_ND, routing, weights);
  if (!Fits(x_ND, routing, weights)) return Misfit(x_ND, routing, weights);
  const int64_t tokens = x_ND.dim(0), top_k = routing.experts_NK.dim(1);
  const int64_t own = weights.gate_EFD.dim(0);
  if (capacity == 0) capacity = ExchangeCapacity(tokens, top_k, devices);
  ExpertTraffic traffic = parallel.expert_traffic();
  if (traffic == ExpertTraffic::kAuto) {
    // Below a tenth less traffic, sorting tokens by device does not pay.
    traffic = capacity * 10 <= tokens * 9 ? ExpertTraffic::kAllToAll : ExpertTraffic::kGather;
  }
  if (traffic == ExpertTraffic::kAllToAll) {
    return Mix(Exchange(tokens, top_k, own, devices, capacity), x_ND, routing, weights);
  }
  const Routing here = {parallel.OwnExperts(parallel.EnterExperts(routing.experts_NK), own),
                        parallel.EnterExperts(routing.weights_NK)};
  return parallel.LeaveExperts(MixExperts(parallel.EnterExperts(x_ND), here, weights));
}

}  // namespace forebay::models
