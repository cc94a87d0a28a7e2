// The insides of a Graph: nodes, primitives, regions. Private to xla/.
//
// One Graph owns every Node, those of nested regions included. Regions under trace form a stack; an
// op appends to the innermost. When a body has been traced, its region is closed: dead nodes go,
// values of the outside that it uses become explicit operands ("captures"), and from then on it is
// immutable, so clones of the node that runs it share it.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {

class Emitter;
class Primitive;

// A set of mesh axes: bit i is axis i.
using AxisSet = uint32_t;

struct Region {
  std::vector<Node*> params;
  std::vector<Node*> nodes;  // without params, operands before users
  Values results;
  bool open = true;
  // The body of a ShardMap: the axes along which each parameter differs (captures do not).
  std::vector<AxisSet> varying;
};

struct Node {
  int64_t id = 0;  // rises with creation: operands have smaller ids than users in an open region
  std::shared_ptr<const Primitive> primitive;  // null: a parameter
  Values operands;
  std::vector<Shape> outputs;
  Region* region = nullptr;
};

// What a primitive's VJP gets. `cotangents` has one entry an output, empty where it is zero (at
// least one is not). `needs` says for which operands a cotangent is wanted. `sums` has one entry an
// operand: where it is not empty, the cotangent will be added to it; a rule that does so itself
// takes it away.
struct VjpCall {
  Graph& graph;
  Node& node;
  const Values& operands;
  const Values& outputs;
  const Values& cotangents;
  const std::vector<bool>& needs;
  Values& sums;
};

struct ShardMapSpecs {
  std::vector<PartitionSpec> in;
  std::vector<PartitionSpec> out;
};

// One kind of op with its attributes. Immutable, shared by clones.
class Primitive {
 public:
  Primitive() = default;
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;
  virtual ~Primitive() = default;

  virtual std::string_view name() const = 0;
  virtual void Emit(const Node& node, Emitter& out) const = 0;
  // False: float outputs do not depend differentiably on operands (Floor, StopGradient).
  virtual bool passes_gradient() const { return true; }
  // A body that uses such a node makes it again rather than carry it in (constants, iotas; a
  // broadcast too, when its operand is one).
  virtual bool is_cheap_constant() const { return false; }
  // In a ShardMap body: the mesh axes along which each output differs between devices, given those
  // of the operands. The default: wherever an operand does.
  virtual std::vector<AxisSet> Varying(const Node& node, std::span<const AxisSet> operands) const;
  // Of one run of the node. The default: nothing that is counted.
  virtual TracedCost Cost(const Node& node) const;
  // A ShardMap's specs of its operands and outputs; null for all others.
  virtual const ShardMapSpecs* specs() const { return nullptr; }
  // One cotangent an operand; empty is zero. Called only where passes_gradient().
  // The default records "NAME: has no gradient" on the graph.
  virtual Values Vjp(const VjpCall& call) const;
};

struct Graph::Impl {
  std::string name;
  std::deque<Node> nodes;
  std::deque<Region> regions;  // those of bodies; primitives point to them
  Region root;
  std::vector<Region*> stack;  // open regions, root first
  std::vector<std::string> parameter_names;
  Status status;
  Node* poison = nullptr;
  std::shared_ptr<const Mesh> mesh;  // that of the ShardMaps, null before the first
  Region* shard_body = nullptr;      // the body of a ShardMap, while it is under trace
  int64_t next_id = 0;
  int64_t host_product_rows = 0;  // see xla/host_product.h

  Node* NewNode(std::shared_ptr<const Primitive> primitive, Values operands,
                std::vector<Shape> outputs);
};

// Appends a node to the innermost region. One Value an output.
Values AddNode(Graph& graph, std::shared_ptr<const Primitive> primitive, Values operands,
               std::vector<Shape> outputs);
// The same for one output.
Value AddOne(Graph& graph, std::shared_ptr<const Primitive> primitive, Values operands,
             Shape output);

bool IsPoison(const Value& value);
Value Poison(Graph& graph);

// The checks that open every op: operands exist, live in one graph and in a region under trace,
// none is poisoned. `name` must outlive the object.
class Operands {
 public:
  Operands(std::string_view name, std::span<const Value> values);
  Operands(std::string_view name, std::initializer_list<Value> values)
      : Operands(name, std::span<const Value>(values.begin(), values.size())) {}

  bool ok() const { return ok_; }
  Graph& graph() const { return *graph_; }
  Value poison() const { return Poison(*graph_); }
  // Records "NAME: message".
  Value Fail(std::string_view message) const;

 private:
  std::string_view name_;
  Graph* graph_ = nullptr;
  bool ok_ = false;
};

// Axis with negatives resolved, or -1 when out of [-rank, rank).
int64_t NormalizeAxis(int64_t axis, int64_t rank);
// All axes resolved and sorted; false on an out-of-range or repeated axis.
bool NormalizeAxes(Dims& axes, int64_t rank);
// "[1, 2]"
std::string DimsText(std::span<const int64_t> dims);

}  // namespace forebay::xla
