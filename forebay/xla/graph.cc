#include "forebay/xla/graph.h"

#include <fmt/core.h>

#include <cctype>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/ops/loop_text.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/region.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/mesh_text.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

// Attribute strings and symbol names take few characters unquoted.
std::string SymbolName(std::string_view name) {
  std::string out;
  for (const char c : name) {
    out += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ? c : '_';
  }
  if (out.empty() || std::isdigit(static_cast<unsigned char>(out[0])) != 0) out.insert(0, "_");
  return out;
}

// Fills donated_to. kInvalidArgument for what XLA would refuse later with a worse message.
Status ApplyAliases(std::span<const Alias> aliases, Program& program) {
  std::vector<bool> taken(program.results.size(), false);
  for (const Alias& alias : aliases) {
    if (alias.parameter < 0 || alias.parameter >= static_cast<int>(program.arguments.size()) ||
        alias.output < 0 || alias.output >= static_cast<int>(program.results.size())) {
      return InvalidArgument(
          fmt::format("graph {}: alias of parameter {} to result {}: it has {} parameters and {} "
                      "results",
                      program.name, alias.parameter, alias.output, program.arguments.size(),
                      program.results.size()));
    }
    const auto p = static_cast<size_t>(alias.parameter);
    const auto r = static_cast<size_t>(alias.output);
    if (program.arguments[p] != program.results[r]) {
      return InvalidArgument(fmt::format(
          "graph {}: parameter {} \"{}\" of shape {} cannot be donated to result {} of shape {}: "
          "the shapes must be equal",
          program.name, p, program.argument_names[p], program.arguments[p].ToString(), r,
          program.results[r].ToString()));
    }
    if (program.mesh.size() > 1 && program.argument_specs[p] != program.result_specs[r]) {
      return InvalidArgument(fmt::format(
          "graph {}: parameter {} \"{}\", split as {}, cannot be donated to result {}, split as {}",
          program.name, p, program.argument_names[p], program.argument_specs[p].ToString(), r,
          program.result_specs[r].ToString()));
    }
    if (program.donated_to[p] >= 0 || taken[r]) {
      return InvalidArgument(
          fmt::format("graph {}: parameter {} or result {} is in two aliases", program.name, p, r));
    }
    program.donated_to[p] = alias.output;
    taken[r] = true;
  }
  return OkStatus();
}

// Also fills host_kernels.
std::string ModuleText(const Region& root, Program& program) {
  const bool on_mesh = program.mesh.size() > 1;
  Emitter emitter;
  std::string arguments;
  std::vector<std::string> names;
  for (size_t i = 0; i < program.arguments.size(); ++i) {
    names.push_back(fmt::format("%arg{}", i));
    std::string attributes;
    if (on_mesh) {
      attributes = ShardingAttribute(program.argument_specs[i], program.arguments[i].rank());
    }
    if (program.donated_to[i] >= 0) {
      attributes += fmt::format("{}tf.aliasing_output = {} : i32", attributes.empty() ? "" : ", ",
                                program.donated_to[i]);
    }
    if (!attributes.empty()) attributes = fmt::format(" {{{}}}", attributes);
    arguments += fmt::format("{}{}: {}{}", i > 0 ? ", " : "", names.back(),
                             TypeText(program.arguments[i]), attributes);
  }
  const std::vector<std::string> returned = emitter.Inline(root, names);
  program.host_kernels = emitter.kernels();
  const std::string types = TypesText(program.results);
  std::string results = types;
  std::string module_attributes, mesh;
  if (on_mesh) {
    results.clear();
    for (size_t i = 0; i < program.results.size(); ++i) {
      results += fmt::format("{}{} {{{}}}", i > 0 ? ", " : "", TypeText(program.results[i]),
                             ShardingAttribute(program.result_specs[i], program.results[i].rank()));
    }
    module_attributes =
        fmt::format(" attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}}",
                    program.mesh.size());
    mesh = fmt::format("  {}\n", MeshText(program.mesh));
  }
  return fmt::format(
      "module @{}{} {{\n{}  func.func public @main({}) -> ({}) {{\n{}    return{}{}{}\n  }}\n}}\n",
      SymbolName(program.name), module_attributes, mesh, arguments, results, emitter.TakeText(),
      returned.empty() ? "" : " " + JoinNames(returned), returned.empty() ? "" : " : ",
      returned.empty() ? "" : types);
}

}  // namespace

const Shape& Value::shape() const {
  FB_CHECK(node_ != nullptr, "an empty Value has no shape");
  return node_->outputs[static_cast<size_t>(output_)];
}

int64_t Value::dim(int i) const {
  if (IsPoison(*this)) return 1;
  const int64_t axis = NormalizeAxis(i, shape().rank());
  if (axis < 0) {
    graph_->Fail(fmt::format("Value::dim: axis {} is out of range for {}", i, shape().ToString()));
    return 1;
  }
  return shape().dims[static_cast<size_t>(axis)];
}

Graph::Graph(std::string name) : impl_(std::make_unique<Impl>()) {
  impl_->name = std::move(name);
  impl_->stack.push_back(&impl_->root);
  // Rank 8, so that model code which reads dims of a poisoned Value by index stays within bounds.
  impl_->poison = impl_->NewNode(nullptr, {}, {Shape{DType::kF32, Dims(8, 1)}});
}

Graph::~Graph() = default;

Node* Graph::Impl::NewNode(std::shared_ptr<const Primitive> primitive, Values operands,
                           std::vector<Shape> outputs) {
  Node& node = nodes.emplace_back();
  node.id = next_id++;
  node.primitive = std::move(primitive);
  node.operands = std::move(operands);
  node.outputs = std::move(outputs);
  node.region = stack.back();
  return &node;
}

Value Graph::Parameter(const Shape& shape, std::string_view name) {
  if (impl_->stack.size() > 1) {
    return Fail(
        fmt::format("Parameter \"{}\": made inside the body of a control-flow op; make it "
                    "before",
                    name));
  }
  for (const int64_t d : shape.dims) {
    if (d < 0) {
      return Fail(fmt::format("Parameter \"{}\": negative size in {}", name, shape.ToString()));
    }
  }
  Node* node = impl_->NewNode(nullptr, {}, {shape});
  impl_->root.params.push_back(node);
  impl_->parameter_names.emplace_back(name);
  return {this, node, 0};
}

Status Graph::status() const { return impl_->status; }

Value Graph::Fail(std::string message) {
  if (impl_->status.ok()) impl_->status = InvalidArgument(std::move(message));
  return Poison(*this);
}

Result<Program> Graph::Finish(std::span<const Value> results, std::span<const Alias> aliases) {
  FB_RETURN_IF_ERROR(impl_->status.WithContext("graph " + impl_->name));
  Program program;
  program.name = impl_->name;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].empty() || results[i].graph() != this) {
      return InvalidArgument(
          fmt::format("graph {}: result {} is {}", impl_->name, i,
                      results[i].empty() ? "an empty Value" : "a Value of another graph"));
    }
    if (results[i].node()->region != &impl_->root) {
      return InvalidArgument(fmt::format(
          "graph {}: result {} is a Value of a control-flow body; return it from the body",
          impl_->name, i));
    }
    program.results.push_back(results[i].shape());
  }
  for (const Node* node : impl_->root.params) program.arguments.push_back(node->outputs[0]);
  program.argument_names = impl_->parameter_names;
  program.donated_to.assign(program.arguments.size(), -1);
  if (impl_->mesh != nullptr && impl_->mesh->size() > 1) {
    program.mesh = *impl_->mesh;
    ProgramSpecs specs = InferSpecs(impl_->root, results);
    program.argument_specs = std::move(specs.arguments);
    program.result_specs = std::move(specs.results);
  }
  FB_RETURN_IF_ERROR(ApplyAliases(aliases, program));

  impl_->root.results.assign(results.begin(), results.end());
  program.stablehlo = ModuleText(impl_->root, program);
  program.cost = RegionCost(impl_->root, impl_->root.results);
  return program;
}

}  // namespace forebay::xla
