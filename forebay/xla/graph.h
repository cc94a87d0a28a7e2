// Graph: one function being traced. Ops (xla/ops.h) append nodes; Finish prints StableHLO.
//
// A Value is a cheap handle to a node's output: copy it freely; it is valid while its Graph lives.
// Errors: an op that is given wrong shapes records an error on its Graph (naming the op and the
// shapes) and returns a poisoned Value; ops on poisoned Values are poisoned silently, so that model
// code stays free of checks. The first error comes out of Finish. Not thread-safe; one Graph, one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {

class Graph;
struct Node;  // private to xla/

class Value {
 public:
  Value() = default;  // empty: belongs to no graph
  Value(Graph* graph, Node* node, int output) : graph_(graph), node_(node), output_(output) {}

  const Shape& shape() const;
  DType dtype() const { return shape().dtype; }
  const std::vector<int64_t>& dims() const { return shape().dims; }
  // Size of dimension i; negative counts from the end.
  int64_t dim(int i) const;
  bool empty() const { return node_ == nullptr; }

  Graph* graph() const { return graph_; }
  Node* node() const { return node_; }
  int output() const { return output_; }

  friend bool operator==(const Value&, const Value&) = default;

 private:
  Graph* graph_ = nullptr;
  Node* node_ = nullptr;
  int output_ = 0;
};

// A printed program: what a Client compiles.
struct Program {
  std::string name;
  std::string stablehlo;         // module text, entry function @main
  std::vector<Shape> arguments;  // in Parameter order
  std::vector<std::string> argument_names;
  std::vector<Shape> results;
  // For each argument: the result whose memory it donates, or -1. A donated buffer is consumed by
  // Execute.
  std::vector<int> donated_to;
  // A program over several devices (xla/shard_map.h) has a mesh with more than one; then one spec
  // an argument and a result. The shapes above are those of whole arrays.
  Mesh mesh = {};
  std::vector<PartitionSpec> argument_specs = {};
  std::vector<PartitionSpec> result_specs = {};
  TracedCost cost = {};                       // on each device
  std::vector<HostKernel> host_kernels = {};  // that it calls; not empty: for the CPU alone
};

// "Result `output` may reuse the memory of parameter `parameter`" (same shape required).
struct Alias {
  int parameter;
  int output;
};

class Graph {
 public:
  explicit Graph(std::string name);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // The next argument of the function.
  Value Parameter(const Shape& shape, std::string_view name);

  // Prints the program that returns `results`. Dead nodes are not printed.
  // Errors: the first trace error; kInvalidArgument for a bad alias or a Value of another graph.
  Result<Program> Finish(std::span<const Value> results, std::span<const Alias> aliases = {});

  // The first error recorded so far.
  Status status() const;
  // Records an error (the first one wins) and returns a poisoned Value. For op implementations.
  Value Fail(std::string message);

  // Private to xla/: nodes in order, owner of them, the enclosing graph of a region.
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay::xla
