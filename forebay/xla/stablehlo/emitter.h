// Emitter: prints a Graph as StableHLO text. Private to xla/.
//
// Text that was printed before in the same scope with the same operands is not printed again
// (common subexpressions), so constants and broadcasts that VJPs repeat cost nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

// "tensor<2x3xf32>"
std::string TypeText(const Shape& shape);
// The same for several, separated by ", ".
std::string TypesText(std::span<const Shape> shapes);
// The literal of `value` as an element of dtype: "1.5e+00", "0x7F800000", "3", "true".
std::string LiteralText(double value, DType dtype);

class Emitter {
 public:
  Emitter() { scopes_.emplace_back(); }

  // Names for printing a primitive's node.
  const std::string& Name(const Value& value) const;
  std::string OperandNames(const Node& node) const;
  static std::vector<Shape> OperandShapes(const Node& node);
  void SetName(const Node& node, int output, std::string name);
  // False when nothing that is printed reads this output.
  bool IsLive(const Node& node, int output) const;

  // Prints `%n = rhs` (or finds it) and names the node's output.
  void Result(const Node& node, std::string_view rhs);
  // Prints `%n = rhs`, or finds it, and returns the name.
  std::string Define(std::string_view rhs);
  // Prints `%n:count = rhs` without looking for an equal one; returns the names.
  std::vector<std::string> DefineMany(std::string_view rhs, int count);
  // Define for a collective: kChannel in rhs becomes a channel number of its own.
  static constexpr std::string_view kChannel = "@channel";
  std::string Collective(std::string_view rhs);
  std::string ScalarConstant(double value, DType dtype);
  std::string FreshName();

  // Prints the region's live nodes with its parameters named `arguments`; returns the names of the
  // results. Results marked dead are named "".
  std::vector<std::string> Inline(const Region& region, std::span<const std::string> arguments,
                                  const std::vector<bool>& live_results);
  std::vector<std::string> Inline(const Region& region, std::span<const std::string> arguments);

  // Nested text: everything printed between Begin and End is indented and returned. An isolated
  // scope does not see names of outer scopes in its search for equal text.
  void BeginNested(bool isolated);
  std::string EndNested();

  void Line(std::string_view text);
  // Notes a kernel that the text calls; those noted, each once.
  void UseKernel(const HostKernel& kernel);
  const std::vector<HostKernel>& kernels() const { return kernels_; }

  std::string TakeText() { return std::move(out_); }

 private:
  // Prints `%n = rhs`, unless something was printed under this key.
  std::string DefineAs(std::string_view key, std::string_view rhs);

  struct Scope {
    std::unordered_map<std::string, std::string> printed;
    bool isolated = true;
    std::string outer_text;
  };

  std::string out_;
  std::vector<Scope> scopes_;
  int64_t next_name_ = 0;
  int64_t next_channel_ = 1;
  std::vector<HostKernel> kernels_;
  std::unordered_map<const Node*, std::vector<std::string>> names_;
  std::unordered_map<const Node*, std::vector<bool>> live_;
};

}  // namespace forebay::xla
