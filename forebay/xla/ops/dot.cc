// DotGeneral, Linear and MatMul.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/xla/graph.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {
namespace {

bool Has(const Dims& axes, int64_t axis) { return std::ranges::find(axes, axis) != axes.end(); }

// The axes that are neither batch nor contracted, ascending.
Dims FreeAxes(int64_t rank, const Dims& batch, const Dims& contract) {
  Dims free;
  for (int64_t i = 0; i < rank; ++i) {
    if (!Has(batch, i) && !Has(contract, i)) free.push_back(i);
  }
  return free;
}

Dims Range(int64_t from, int64_t to) {
  Dims range;
  for (int64_t i = from; i < to; ++i) range.push_back(i);
  return range;
}

// One side of a product, for its gradient.
struct Side {
  Value value;
  const Dims& batch;
  const Dims& contract;
  Dims free;
  Dims free_in_result;
};

// d(product)/d(self): the cotangent contracted with the other side over the other's free axes. Of
// the two operand orders the one whose result needs no transpose is taken.
Value SideGradient(const Value& ct, const Side& self, const Side& other) {
  const auto batches = static_cast<int64_t>(self.batch.size());
  const Value c = Convert(ct, other.value.dtype());  // a bf16 product has bf16 products in its VJP
  const DType dtype = self.value.dtype();
  // The other's contracted axes stay; in the result they stand in the order of its axes.
  Dims contract_targets;
  Dims sorted = other.contract;
  std::ranges::sort(sorted);
  for (const int64_t axis : sorted) {
    const auto at = std::ranges::find(other.contract, axis) - other.contract.begin();
    contract_targets.push_back(self.contract[static_cast<size_t>(at)]);
  }
  Dims ct_first = self.batch;
  ct_first.insert(ct_first.end(), self.free.begin(), self.free.end());
  ct_first.insert(ct_first.end(), contract_targets.begin(), contract_targets.end());
  Dims other_first = self.batch;
  other_first.insert(other_first.end(), contract_targets.begin(), contract_targets.end());
  other_first.insert(other_first.end(), self.free.begin(), self.free.end());

  if (std::ranges::is_sorted(other_first) && !std::ranges::is_sorted(ct_first)) {
    return DotGeneral(other.value, c,
                      {.lhs_batch = other.batch,
                       .rhs_batch = Range(0, batches),
                       .lhs_contract = other.free,
                       .rhs_contract = other.free_in_result},
                      dtype);
  }
  const Value product = DotGeneral(c, other.value,
                                   {.lhs_batch = Range(0, batches),
                                    .rhs_batch = other.batch,
                                    .lhs_contract = other.free_in_result,
                                    .rhs_contract = other.free},
                                   dtype);
  Dims permutation(ct_first.size());
  for (size_t i = 0; i < ct_first.size(); ++i) {
    permutation[static_cast<size_t>(ct_first[i])] = static_cast<int64_t>(i);
  }
  return Transpose(product, std::move(permutation));
}

class DotPrimitive final : public Primitive {
 public:
  explicit DotPrimitive(DotDims dims) : dims_(std::move(dims)) {}
  std::string_view name() const override { return "DotGeneral"; }
  void Emit(const Node& node, Emitter& out) const override {
    std::string batching;
    if (!dims_.lhs_batch.empty()) {
      batching = fmt::format("batching_dims = {} x {}, ", DimsText(dims_.lhs_batch),
                             DimsText(dims_.rhs_batch));
    }
    out.Result(node,
               fmt::format("stablehlo.dot_general {}, {}contracting_dims = {} x {}, precision "
                           "= [DEFAULT, DEFAULT] : ({}) -> {}",
                           out.OperandNames(node), batching, DimsText(dims_.lhs_contract),
                           DimsText(dims_.rhs_contract), TypesText(Emitter::OperandShapes(node)),
                           TypeText(node.outputs[0])));
  }
  TracedCost Cost(const Node& node) const override {
    double flops = 2.0 * static_cast<double>(node.outputs[0].elements());
    for (const int64_t axis : dims_.lhs_contract) {
      flops *= static_cast<double>(node.operands[0].dims()[static_cast<size_t>(axis)]);
    }
    return {.dot_flops = flops};
  }
  Values Vjp(const VjpCall& call) const override {
    const Value l = call.operands[0];
    const Value r = call.operands[1];
    const auto batches = static_cast<int64_t>(dims_.lhs_batch.size());
    const int64_t rank = call.outputs[0].shape().rank();
    Side lhs{l,
             dims_.lhs_batch,
             dims_.lhs_contract,
             FreeAxes(l.shape().rank(), dims_.lhs_batch, dims_.lhs_contract),
             {}};
    Side rhs{r,
             dims_.rhs_batch,
             dims_.rhs_contract,
             FreeAxes(r.shape().rank(), dims_.rhs_batch, dims_.rhs_contract),
             {}};
    const int64_t middle = batches + static_cast<int64_t>(lhs.free.size());
    lhs.free_in_result = Range(batches, middle);
    rhs.free_in_result = Range(middle, rank);
    Values out(2);
    if (call.needs[0]) out[0] = SideGradient(call.cotangents[0], lhs, rhs);
    if (call.needs[1]) out[1] = SideGradient(call.cotangents[0], rhs, lhs);
    return out;
  }

 private:
  DotDims dims_;
};

bool ValidAxes(const Dims& batch, const Dims& contract, int64_t rank) {
  Dims all = batch;
  all.insert(all.end(), contract.begin(), contract.end());
  std::ranges::sort(all);
  return std::ranges::adjacent_find(all) == all.end() &&
         (all.empty() || (all.front() >= 0 && all.back() < rank));
}

bool NormalizeAll(Dims& axes, int64_t rank) {
  for (int64_t& axis : axes) axis = NormalizeAxis(axis, rank);
  return !Has(axes, -1);
}

bool SizesAgree(const Value& lhs, const Dims& l, const Value& rhs, const Dims& r) {
  if (l.size() != r.size()) return false;
  for (size_t i = 0; i < l.size(); ++i) {
    if (lhs.dims()[static_cast<size_t>(l[i])] != rhs.dims()[static_cast<size_t>(r[i])])
      return false;
  }
  return true;
}

// Whether this product is to be a host kernel: rows [m, k] by [n, k].
bool OnHost(const Value& lhs, const Value& rhs, const DotDims& dims) {
  const Dims last = {1};
  return rhs.shape().rank() == 2 && dims.lhs_contract == last && dims.rhs_contract == last &&
         dims.lhs_batch.empty() && TakesHostProduct(lhs);
}

}  // namespace

Value DotGeneral(Value lhs, Value rhs, const DotDims& asked, std::optional<DType> result) {
  const Operands in("DotGeneral", {lhs, rhs});
  if (!in.ok()) return in.poison();
  if (lhs.dtype() != rhs.dtype() || lhs.dtype() == DType::kPred) {
    return in.Fail(fmt::format("dtypes of {} and {} differ or are pred; Convert one of them",
                               lhs.shape().ToString(), rhs.shape().ToString()));
  }
  DotDims dims = asked;
  const int64_t lhs_rank = lhs.shape().rank();
  const int64_t rhs_rank = rhs.shape().rank();
  const bool valid =
      NormalizeAll(dims.lhs_batch, lhs_rank) && NormalizeAll(dims.lhs_contract, lhs_rank) &&
      NormalizeAll(dims.rhs_batch, rhs_rank) && NormalizeAll(dims.rhs_contract, rhs_rank) &&
      ValidAxes(dims.lhs_batch, dims.lhs_contract, lhs_rank) &&
      ValidAxes(dims.rhs_batch, dims.rhs_contract, rhs_rank) &&
      SizesAgree(lhs, dims.lhs_batch, rhs, dims.rhs_batch) &&
      SizesAgree(lhs, dims.lhs_contract, rhs, dims.rhs_contract);
  if (!valid) {
    return in.Fail(fmt::format(
        "shapes {} and {} with batch axes {} x {} and contracted axes {} x {}: the axes must be "
        "distinct and their sizes equal",
        lhs.shape().ToString(), rhs.shape().ToString(), DimsText(asked.lhs_batch),
        DimsText(asked.rhs_batch), DimsText(asked.lhs_contract), DimsText(asked.rhs_contract)));
  }
  const bool narrow = lhs.dtype() == DType::kBF16 || lhs.dtype() == DType::kF16;
  Shape shape{result.value_or(narrow ? DType::kF32 : lhs.dtype()), {}};
  const auto append = [&](const Value& v, const Dims& axes) {
    for (const int64_t axis : axes) shape.dims.push_back(v.dims()[static_cast<size_t>(axis)]);
  };
  append(lhs, dims.lhs_batch);
  append(lhs, FreeAxes(lhs_rank, dims.lhs_batch, dims.lhs_contract));
  append(rhs, FreeAxes(rhs_rank, dims.rhs_batch, dims.rhs_contract));
  if (OnHost(lhs, rhs, dims)) {
    const Value weight[] = {rhs};
    const Value product = HostProducts(lhs, weight)[0];
    return shape.dtype == DType::kF32 ? product : Convert(product, shape.dtype);
  }
  return AddOne(in.graph(), std::make_shared<DotPrimitive>(std::move(dims)), {lhs, rhs},
                std::move(shape));
}

Value Linear(Value x, Value weight) {
  const Operands in("Linear", {x, weight});
  if (!in.ok()) return in.poison();
  if (x.dims().empty() || weight.shape().rank() != 2 || x.dims().back() != weight.dims()[1] ||
      x.dtype() != weight.dtype()) {
    return in.Fail(
        fmt::format("x {} and weight {}: x must be [..., in] and weight [out, in] of "
                    "one dtype",
                    x.shape().ToString(), weight.shape().ToString()));
  }
  return DotGeneral(x, weight, {.lhs_contract = {-1}, .rhs_contract = {1}}, x.dtype());
}

Value MatMul(Value a, Value b) {
  const Operands in("MatMul", {a, b});
  if (!in.ok()) return in.poison();
  const int64_t rank = a.shape().rank();
  bool valid = rank >= 2 && rank == b.shape().rank() && a.dtype() == b.dtype();
  valid = valid && a.dims().back() == b.dims()[static_cast<size_t>(rank - 2)] &&
          std::equal(a.dims().begin(), a.dims().end() - 2, b.dims().begin());
  if (!valid) {
    return in.Fail(
        fmt::format("shapes {} and {}: they must be [..., m, k] and [..., k, n] with "
                    "equal leading dims and dtype",
                    a.shape().ToString(), b.shape().ToString()));
  }
  const Dims batch = Range(0, rank - 2);
  return DotGeneral(a, b,
                    {.lhs_batch = batch,
                     .rhs_batch = batch,
                     .lhs_contract = {rank - 1},
                     .rhs_contract = {rank - 2}},
                    a.dtype());
}

}  // namespace forebay::xla
