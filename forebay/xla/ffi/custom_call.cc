#include "forebay/xla/custom_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

// Row-major; without it XLA is free to hand over any other order.
std::string LayoutText(std::span<const Shape> shapes) {
  std::string out;
  for (const Shape& shape : shapes) {
    std::string axes;
    for (int64_t i = shape.rank() - 1; i >= 0; --i) {
      axes += fmt::format("{}{}", axes.empty() ? "" : ", ", i);
    }
    out += fmt::format("{}dense<{}> : tensor<{}xindex>", out.empty() ? "" : ", ",
                       shape.rank() == 0 ? "" : "[" + axes + "]", shape.rank());
  }
  return out;
}

std::string AliasesText(std::span<const HostCallOptions::InPlace> in_place, size_t results) {
  std::string out;
  for (const auto& [operand, result] : in_place) {
    out += fmt::format(
        "{}#stablehlo.output_operand_alias<output_tuple_indices = [{}], operand_index = {}, "
        "operand_tuple_indices = []>",
        out.empty() ? "" : ", ", results == 1 ? "" : std::to_string(result), operand);
  }
  return out;
}

class HostCallPrimitive final : public Primitive {
 public:
  HostCallPrimitive(HostKernel kernel, const HostCallOptions& options)
      : kernel_(std::move(kernel)), numbers_(options.numbers), in_place_(options.in_place) {}
  std::string_view name() const override { return "CallHost"; }

  void Emit(const Node& node, Emitter& out) const override {
    std::string numbers;
    for (const auto& [key, value] : numbers_) {
      numbers += fmt::format("{}{} = {:.17e} : f64", numbers.empty() ? "" : ", ", key, value);
    }
    const std::vector<Shape> operands = Emitter::OperandShapes(node);
    const std::vector<std::string> names = out.DefineMany(
        fmt::format("stablehlo.custom_call @{}({}) {{api_version = 4 : i32, backend_config = {{{}}}"
                    ", operand_layouts = [{}], result_layouts = [{}]"
                    ", output_operand_aliases = [{}]}} : ({}) -> ({})",
                    kernel_.name, out.OperandNames(node), numbers, LayoutText(operands),
                    LayoutText(node.outputs), AliasesText(in_place_, node.outputs.size()),
                    TypesText(operands), TypesText(node.outputs)),
        static_cast<int>(node.outputs.size()));
    for (size_t i = 0; i < names.size(); ++i) out.SetName(node, static_cast<int>(i), names[i]);
    out.UseKernel(kernel_);
  }

 private:
  HostKernel kernel_;
  std::map<std::string, double> numbers_;
  std::vector<HostCallOptions::InPlace> in_place_;
};

// One operand and one result each, alike.
bool Fit(std::span<const HostCallOptions::InPlace> in_place, std::span<const Value> xs,
         std::span<const Shape> results) {
  std::set<int> operands, outputs;
  return std::ranges::all_of(in_place, [&](const HostCallOptions::InPlace& pair) {
    return pair.operand >= 0 && static_cast<size_t>(pair.operand) < xs.size() && pair.result >= 0 &&
           static_cast<size_t>(pair.result) < results.size() &&
           operands.insert(pair.operand).second && outputs.insert(pair.result).second &&
           xs[static_cast<size_t>(pair.operand)].shape() ==
               results[static_cast<size_t>(pair.result)];
  });
}

bool IsIdentifier(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

bool IsHostType(const Shape& shape) {
  return shape.dtype == DType::kF32 || shape.dtype == DType::kBF16 || shape.dtype == DType::kS32;
}

}  // namespace

Values CallHost(const HostKernel& kernel, std::span<const Value> xs,
                const HostCallOptions& options) {
  const Operands in("CallHost", xs);
  const auto fail = [&](std::string_view message) {
    return Values(std::max<size_t>(options.results.size(), 1),
                  in.Fail(fmt::format("{}: {}", kernel.name, message)));
  };
  if (!in.ok()) return Values(std::max<size_t>(options.results.size(), 1), in.poison());
  if (kernel.entry == nullptr || !IsIdentifier(kernel.name)) {
    return fail("a kernel has a function and a name of letters, digits and _");
  }
  if (options.results.empty()) return fail("a kernel has a result");
  std::vector<Shape> shapes = options.results;
  for (const Value& x : xs) shapes.push_back(x.shape());
  for (const Shape& shape : shapes) {
    if (IsHostType(shape)) continue;
    return fail(fmt::format("{} is neither f32, bf16 nor s32", shape.ToString()));
  }
  for (const auto& [name, value] : options.numbers) {
    if (IsIdentifier(name) && std::isfinite(value)) continue;
    return fail(fmt::format("no number to pass on: '{}' = {}", name, value));
  }
  if (!Fit(options.in_place, xs, options.results)) {
    return fail("each result in place lies in one operand of its shape, each operand in one place");
  }
  return AddNode(in.graph(), std::make_shared<HostCallPrimitive>(kernel, options),
                 Values(xs.begin(), xs.end()), options.results);
}

}  // namespace forebay::xla
