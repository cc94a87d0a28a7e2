// AxisIndex: where this device stands.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/collective.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/stablehlo/emitter.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {
namespace {

class AxisIndexPrimitive final : public Collective {
 public:
  using Collective::Collective;
  std::string_view name() const override { return "AxisIndex"; }
  bool passes_gradient() const override { return false; }
  void Emit(const Node& node, Emitter& out) const override {
    const auto op = [&](std::string_view name, const std::string& a, int64_t b) {
      const std::string right = out.ScalarConstant(static_cast<double>(b), DType::kS32);
      return out.Define(fmt::format("stablehlo.{} {}, {} : tensor<i32>", name, a, right));
    };
    const std::string id = out.Define("stablehlo.partition_id : tensor<ui32>");
    const std::string device =
        out.Define(fmt::format("stablehlo.convert {} : (tensor<ui32>) -> tensor<i32>", id));
    std::string index;
    for (const std::string& name : axes().names()) {
      const auto number = static_cast<size_t>(mesh().AxisNumber(name));
      int64_t stride = 1;
      for (size_t i = number + 1; i < mesh().axes().size(); ++i) stride *= mesh().axes()[i].size;
      const int64_t size = mesh().axes()[number].size;
      const std::string position = op("remainder", op("divide", device, stride), size);
      if (index.empty()) {
        index = position;
      } else {
        index = out.Define(fmt::format("stablehlo.add {}, {} : tensor<i32>",
                                       op("multiply", index, size), position));
      }
    }
    out.SetName(node, 0, index);
  }
  TracedCost Cost(const Node&) const override { return {}; }
  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet>) const override {
    return {set()};
  }
};

}  // namespace

Value AxisIndex(Graph& graph, const Axes& axes) {
  std::shared_ptr<const Mesh> mesh = CheckAxes(graph, "AxisIndex", axes);
  if (mesh == nullptr) return Poison(graph);
  if (mesh->Size(axes) == 1) return Constant(graph, 0, DType::kS32);
  return AddOne(graph, std::make_shared<AxisIndexPrimitive>(std::move(mesh), axes), {},
                {DType::kS32, {}});
}

}  // namespace forebay::xla
