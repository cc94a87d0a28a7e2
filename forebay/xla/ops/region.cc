#include "forebay/xla/ops/region.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <ranges>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

void RemoveDeadNodes(Region& region) {
  std::unordered_set<const Node*> live;
  for (const Value& v : region.results) live.insert(v.node());
  for (const Node* node : region.nodes | std::views::reverse) {
    if (!live.contains(node)) continue;
    for (const Value& v : node->operands) live.insert(v.node());
  }
  std::erase_if(region.nodes, [&](const Node* node) { return !live.contains(node); });
}

// Replaces values of enclosing regions by parameters, or by copies where they are constants.
class CaptureResolver {
 public:
  CaptureResolver(Graph& graph, Region& region) : graph_(graph), region_(region) {}

  void Run() {
    for (Node* node : region_.nodes) {
      for (Value& v : node->operands) v = Resolve(v);
    }
    for (Value& v : region_.results) v = Resolve(v);
    region_.nodes.insert(region_.nodes.begin(), copies_.begin(), copies_.end());
  }
  Values TakeCaptures() { return std::move(captures_); }

 private:
  Value Resolve(const Value& v) {
    if (v.node()->region == &region_) return v;
    const auto known = resolved_.find(v.node());
    if (known != resolved_.end()) {
      for (const auto& [output, inside] : known->second) {
        if (output == v.output()) return inside;
      }
    }
    Value inside;
    if (IsConstantLike(*v.node())) {
      inside = Copy(v);
    } else {
      Node* param = graph_.impl().NewNode(nullptr, {}, {v.shape()});
      param->region = &region_;
      region_.params.push_back(param);
      captures_.push_back(v);
      inside = Value(&graph_, param, 0);
    }
    resolved_[v.node()].emplace_back(v.output(), inside);
    return inside;
  }

  // Splats and iotas: cheaper to make again than to carry through a loop, and XLA can fold them.
  static bool IsConstantLike(const Node& node) {
    if (node.primitive == nullptr || !node.primitive->is_cheap_constant()) return false;
    return std::ranges::all_of(node.operands, [](const Value& v) {
      return v.node()->primitive != nullptr && v.node()->operands.empty() &&
             v.node()->primitive->is_cheap_constant();
    });
  }

  Value Copy(const Value& v) {
    Values operands;
    for (const Value& operand : v.node()->operands) operands.push_back(Resolve(operand));
    Node* copy = graph_.impl().NewNode(v.node()->primitive, std::move(operands), v.node()->outputs);
    copy->region = &region_;
    copies_.push_back(copy);
    return {&graph_, copy, v.output()};
  }

  Graph& graph_;
  Region& region_;
  std::unordered_map<const Node*, std::vector<std::pair<int, Value>>> resolved_;
  std::vector<Node*> copies_;
  Values captures_;
};

}  // namespace

std::vector<Shape> TracedBody::ResultShapes() const {
  std::vector<Shape> shapes;
  for (const Value& v : region->results) shapes.push_back(v.shape());
  return shapes;
}

TracedBody TraceBody(Graph& graph, std::string_view op, const BodyFn& body,
                     std::span<const Shape> params, bool poisoned) {
  Graph::Impl& impl = graph.impl();
  Region& region = impl.regions.emplace_back();
  impl.stack.push_back(&region);
  Values args;
  for (const Shape& shape : params) {
    Node* param = poisoned ? impl.poison : impl.NewNode(nullptr, {}, {shape});
    if (!poisoned) region.params.push_back(param);
    args.emplace_back(&graph, param, 0);
  }
  region.results = body(args);

  TracedBody traced;
  bool ok = !poisoned;
  if (region.results.empty()) {
    graph.Fail(fmt::format("{}: the body returns no values", op));
    ok = false;
  } else {
    for (const Value& v : region.results) {
      if (v.empty()) {
        graph.Fail(fmt::format("{}: the body returns an empty Value", op));
        ok = false;
      }
    }
    ok = ok && Operands(op, region.results).ok();
  }
  FB_CHECK(impl.stack.back() == &region, "a body left a region open");
  impl.stack.pop_back();
  region.open = false;
  if (!ok) {
    traced.poisoned_results.assign(region.results.size(), Poison(graph));
    return traced;
  }
  RemoveDeadNodes(region);
  CaptureResolver resolver(graph, region);
  resolver.Run();
  traced.captures = resolver.TakeCaptures();
  traced.region = &region;
  return traced;
}

Values InlineRegion(Graph& graph, const Region& region, std::span<const Value> args) {
  FB_CHECK(args.size() == region.params.size(), "region arguments");
  std::unordered_map<const Node*, Values> copies;
  for (size_t i = 0; i < args.size(); ++i) copies[region.params[i]] = {args[i]};
  const auto copy_of = [&](const Value& v) {
    return copies.at(v.node())[static_cast<size_t>(v.output())];
  };
  for (const Node* node : region.nodes) {
    Values operands;
    operands.reserve(node->operands.size());
    for (const Value& v : node->operands) operands.push_back(copy_of(v));
    copies[node] = AddNode(graph, node->primitive, std::move(operands), node->outputs);
  }
  Values results;
  results.reserve(region.results.size());
  for (const Value& v : region.results) results.push_back(copy_of(v));
  return results;
}

Values MergeCaptures(Graph& graph, Region& region, const Values& own, const Values& others) {
  Values all = own;
  for (const Value& v : others) {
    if (std::ranges::find(all, v) != all.end()) continue;
    Node* param = graph.impl().NewNode(nullptr, {}, {v.shape()});
    param->region = &region;
    region.params.push_back(param);
    all.push_back(v);
  }
  return all;
}

std::vector<bool> UsedParams(const Region& region) {
  std::unordered_set<const Node*> read;
  for (const Value& v : region.results) read.insert(v.node());
  for (const Node* node : region.nodes) {
    for (const Value& v : node->operands) read.insert(v.node());
  }
  std::vector<bool> used;
  used.reserve(region.params.size());
  for (const Node* param : region.params) used.push_back(read.contains(param));
  return used;
}

}  // namespace forebay::xla
