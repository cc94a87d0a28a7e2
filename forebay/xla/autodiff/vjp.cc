#include "forebay/xla/autodiff/vjp.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ranges>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/varying.h"

namespace forebay::xla {
namespace {

class Differentiator {
 public:
  Differentiator(Graph& graph, std::span<const Value> wrt) : graph_(graph), wrt_(wrt) {
    for (const Value& w : wrt) {
      first_id_ = std::min(first_id_, w.node()->id);
      std::vector<bool>& outputs = states_[w.node()].wrt;
      outputs.resize(w.node()->outputs.size());
      outputs[static_cast<size_t>(w.output())] = true;
    }
  }

  Values Run(std::span<const Value> outputs, std::span<const Value> cotangents) {
    Collect(outputs);
    for (Node* node : order_) {
      State& state = states_[node];
      state.through = node->primitive != nullptr && node->primitive->passes_gradient() &&
                      std::ranges::any_of(node->operands, [&](const Value& v) { return Needs(v); });
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!cotangents[i].empty() && Needs(outputs[i])) Accumulate(outputs[i], cotangents[i]);
    }
    for (Node* node : order_ | std::views::reverse) Propagate(*node);
    Values result;
    for (const Value& w : wrt_) {
      const Values& cts = states_[w.node()].cotangents;
      result.push_back(cts.empty() ? Value() : cts[static_cast<size_t>(w.output())]);
    }
    return result;
  }

 private:
  struct State {
    std::vector<bool> wrt;  // which outputs are asked for; empty: none
    bool through = false;   // outputs depend on something asked for
    bool visited = false;
    Values cotangents;
  };

  // Every node between wrt and outputs, by id: operands before users. An explicit stack, because a
  // graph may be tens of thousands of nodes deep.
  void Collect(std::span<const Value> outputs) {
    std::vector<Node*> pending;
    const auto visit = [&](const Value& v) {
      Node* node = v.node();
      if (node->id < first_id_) return;
      State& state = states_[node];
      if (std::exchange(state.visited, true)) return;
      order_.push_back(node);
      pending.push_back(node);
    };
    for (const Value& v : outputs) visit(v);
    while (!pending.empty()) {
      const Node* node = pending.back();
      pending.pop_back();
      for (const Value& v : node->operands) visit(v);
    }
    std::ranges::sort(order_, {}, &Node::id);
  }

  bool Needs(const Value& v) const {
    if (!IsFloat(v.dtype())) return false;
    const auto it = states_.find(v.node());
    if (it == states_.end()) return false;
    const State& state = it->second;
    return state.through || (!state.wrt.empty() && state.wrt[static_cast<size_t>(v.output())]);
  }

  void Accumulate(const Value& v, const Value& cotangent) {
    FB_CHECK(
        IsPoison(cotangent) || cotangent.shape() == v.shape(),
        fmt::format("a VJP made {} for {}", cotangent.shape().ToString(), v.shape().ToString()));
    Values& cts = states_[v.node()].cotangents;
    cts.resize(v.node()->outputs.size());
    Value& ct = cts[static_cast<size_t>(v.output())];
    ct = ct.empty() ? cotangent : Add(ct, cotangent);
  }

  void Propagate(Node& node) {
    const State& state = states_[&node];
    if (!state.through || state.cotangents.empty()) return;
    const Values cotangents = state.cotangents;
    // Copies: a Scan's VJP adds outputs to its node, and ops append to the graph's nodes.
    const Values operands = node.operands;
    std::vector<bool> needs;
    for (const Value& v : operands) needs.push_back(Needs(v));
    Values outputs;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      outputs.emplace_back(&graph_, &node, static_cast<int>(i));
    }
    Values full = cotangents;
    full.resize(outputs.size());
    const Values contributions = node.primitive->Vjp({.graph = graph_,
                                                      .node = node,
                                                      .operands = operands,
                                                      .outputs = outputs,
                                                      .cotangents = full,
                                                      .needs = needs});
    FB_CHECK(contributions.size() == operands.size(), node.primitive->name());
    for (size_t i = 0; i < operands.size(); ++i) {
      if (needs[i] && !contributions[i].empty()) Accumulate(operands[i], contributions[i]);
    }
  }

  Graph& graph_;
  std::span<const Value> wrt_;
  int64_t first_id_ = std::numeric_limits<int64_t>::max();
  std::unordered_map<const Node*, State> states_;
  std::vector<Node*> order_;
};

}  // namespace

Values VjpOrEmpty(Graph& graph, std::span<const Value> outputs, std::span<const Value> cotangents,
                  std::span<const Value> wrt) {
  FB_CHECK(outputs.size() == cotangents.size(), "one cotangent an output");
  return Differentiator(graph, wrt).Run(outputs, cotangents);
}

Values Vjp(std::span<const Value> outputs, std::span<const Value> cotangents,
           std::span<const Value> wrt) {
  if (wrt.empty()) return {};
  Values all(outputs.begin(), outputs.end());
  all.insert(all.end(), cotangents.begin(), cotangents.end());
  all.insert(all.end(), wrt.begin(), wrt.end());
  const Operands in("Vjp", all);
  const auto fail = [&](std::string_view message) { return Values(wrt.size(), in.Fail(message)); };
  if (!in.ok()) return Values(wrt.size(), in.poison());
  if (outputs.size() != cotangents.size()) {
    return fail(fmt::format("{} outputs but {} cotangents", outputs.size(), cotangents.size()));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].shape() != cotangents[i].shape()) {
      return fail(fmt::format("output {} is {} but its cotangent {}", i,
                              outputs[i].shape().ToString(), cotangents[i].shape().ToString()));
    }
  }
  for (size_t i = 0; i < wrt.size(); ++i) {
    if (!IsFloat(wrt[i].dtype())) {
      return fail(
          fmt::format("wrt {} is {}; only floats have gradients", i, wrt[i].shape().ToString()));
    }
  }
  Values result = VjpOrEmpty(in.graph(), outputs, cotangents, wrt);
  for (size_t i = 0; i < wrt.size(); ++i) {
    if (result[i].empty()) result[i] = ZerosLike(wrt[i]);
  }
  return result;
}

Values Gradients(Value loss, std::span<const Value> wrt) {
  const Operands in("Gradients", {loss});
  if (!in.ok()) return Values(wrt.size(), in.poison());
  if (!IsFloat(loss.dtype()) || !loss.dims().empty()) {
    return Values(wrt.size(), in.Fail(fmt::format("the loss is {}; it must be a float scalar",
                                                  loss.shape().ToString())));
  }
  const Graph::Impl& impl = in.graph().impl();
  if (impl.shard_body == nullptr || impl.mesh->size() == 1) {
    const Value one = Constant(in.graph(), 1.0, loss.dtype());
    return Vjp(std::span(&loss, 1), std::span(&one, 1), wrt);
  }
  // The mean of the loss over all devices: each gives its share. See xla/shard_map.h.
  const Value share =
      Constant(in.graph(), 1.0 / static_cast<double>(impl.mesh->size()), loss.dtype());
  return SumOverReplicas(in.graph(), wrt, Vjp(std::span(&loss, 1), std::span(&share, 1), wrt));
}

}  // namespace forebay::xla
