// The ops of a traced program. Each op's shape rule, StableHLO and VJP stand together in xla/ops/.
//
// Elementwise binary ops broadcast like NumPy (trailing dimensions align, size 1 stretches) and
// need equal dtypes; a C++ scalar takes the dtype of the other side. Negative axes count from the
// end. Shapes in comments: [batch, len, dim]. Errors: see xla/graph.h (recorded on the Graph, named
// by op).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/graph.h"

namespace forebay::xla {

using Dims = std::vector<int64_t>;
using Values = std::vector<Value>;

// ---- constants
Value Constant(Graph& graph, double value, DType dtype);                      // scalar
Value Full(Graph& graph, double value, const Shape& shape);                   // a broadcast scalar
Value ConstantArray(Graph& graph, std::span<const float> values, Dims dims);  // small tables, f32
Value ConstantArrayS32(Graph& graph, std::span<const int32_t> values, Dims dims);
Value Iota(Graph& graph, const Shape& shape, int axis);
Value ZerosLike(Value x);

// ---- elementwise
Value Add(Value a, Value b);
Value Sub(Value a, Value b);
Value Mul(Value a, Value b);
Value Div(Value a, Value b);
Value Max(Value a, Value b);  // equal elements share the gradient, here and in Min
Value Min(Value a, Value b);
Value Pow(Value a, Value b);
Value Rem(Value a, Value b);
Value Neg(Value x);
Value Abs(Value x);
Value Sign(Value x);
Value Exp(Value x);
Value Log(Value x);
Value Log1p(Value x);
Value Sqrt(Value x);
Value Rsqrt(Value x);
Value Tanh(Value x);
Value Logistic(Value x);  // sigmoid
Value Sin(Value x);
Value Cos(Value x);
Value Floor(Value x);
Value Silu(Value x);                            // x * sigmoid(x)
Value Clamp(Value x, double low, double high);  // gradient 1 on [low, high], bounds included
Value Convert(Value x,
              DType dtype);  // float <-> float passes gradients, other conversions stop them
Value BitcastConvert(Value x, DType dtype);  // same element size; no gradient
Value StopGradient(Value x);
// Keeps XLA from merging computation across this point (used by Remat); identity for gradients.
Values OptimizationBarrier(std::span<const Value> xs);

Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator-(Value a);
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator*(Value a, double b);
Value operator/(Value a, double b);
Value operator+(double a, Value b);
Value operator-(double a, Value b);
Value operator*(double a, Value b);
Value operator/(double a, Value b);

// ---- comparison, logic, integers (no gradients)
enum class Comparison { kEq, kNe, kLt, kLe, kGt, kGe };
Value Compare(Value a, Value b, Comparison how);  // kPred
Value And(Value a, Value b);
Value Or(Value a, Value b);
Value Xor(Value a, Value b);
Value Not(Value a);
Value ShiftLeft(Value a, Value b);
Value ShiftRightLogical(Value a, Value b);
// predicate ? on_true : on_false, elementwise with broadcasting. The gradient of the side not taken
// is an exact zero, even where its value is inf or NaN.
Value Select(Value predicate, Value on_true, Value on_false);

// ---- shape
Value Reshape(Value x, Dims dims);  // one -1 is inferred
Value Transpose(Value x, Dims permutation);
Value BroadcastTo(Value x, Dims dims);  // NumPy rule
Value BroadcastInDim(Value x, Dims dims, Dims operand_to_result_axes);
Value ExpandDims(Value x, int axis);
Value Squeeze(Value x, int axis);
Value Slice(Value x, int axis, int64_t start, int64_t limit, int64_t stride = 1);
Value Concatenate(std::span<const Value> xs, int axis);
Value Pad(Value x, int axis, int64_t low, int64_t high, double value);
Value Reverse(Value x, int axis);
// Starts are s32 scalars, one an axis; out-of-range starts clamp, as XLA does.
Value DynamicSlice(Value x, std::span<const Value> starts, Dims sizes);
Value DynamicUpdateSlice(Value x, Value update, std::span<const Value> starts);
// The leading-axis row `index` (s32 scalar) of x: [n, ...] -> [...].
Value IndexLeading(Value x, Value index);

// ---- reductions (over `axes`; keep_dims leaves size-1 axes)
Value ReduceSum(Value x, Dims axes, bool keep_dims = false);
Value ReduceMax(Value x, Dims axes, bool keep_dims = false);  // gradient is shared among ties
Value ReduceMin(Value x, Dims axes, bool keep_dims = false);
Value ReduceMean(Value x, Dims axes, bool keep_dims = false);
Value ReduceAll(Value x);  // kPred -> scalar kPred, and
Value ReduceAny(Value x);
Value ArgMax(Value x, int axis);  // s32, the first of equals
Value CumSum(Value x, int axis);
Value Softmax(Value x, int axis);
Value LogSumExp(Value x, Dims axes, bool keep_dims = false);

// ---- products
struct DotDims {
  Dims lhs_batch, rhs_batch, lhs_contract, rhs_contract;
};
// Result: batch dims, then free lhs dims, then free rhs dims. `accumulate` is the result dtype (f32
// for bf16 inputs unless said).
Value DotGeneral(Value lhs, Value rhs, const DotDims& dims, std::optional<DType> result = {});
// x [..., in] times weight [out, in] (the layout of Hugging Face checkpoints) -> [..., out], in x's
// dtype.
Value Linear(Value x, Value weight);
Value MatMul(Value a, Value b);  // [..., m, k] x [..., k, n], equal leading dims; a's dtype

// ---- lookup
// Rows of table [n, ...dims] at s32 indices [...idx] -> [...idx, ...dims]; out-of-range indices
// clamp. Its VJP is a scatter-add.
Value Take(Value table, Value indices);
// x [..., n], s32 indices [...] -> x[..., indices[...]]: one element of the last axis each.
Value TakeAlongLast(Value x, Value indices);
// Adds updates [k, ...dims] to rows indices [k] of x [n, ...dims]; repeated rows accumulate.
Value ScatterAdd(Value x, Value indices, Value updates);
// Sets updates [k, ...dims] at rows indices [k]; for repeated rows one wins. Out-of-range rows are
// dropped.
Value ScatterSet(Value x, Value indices, Value updates);
// Values sorted along the last axis, largest first, with their s32 positions. No gradient.
std::pair<Value, Value> SortDescending(Value x);

// ---- control flow. Bodies are traced at once; values of the enclosing graph may be used inside
// them.
using BodyFn = std::function<Values(std::span<const Value>)>;

// Runs `body(carry..., x_slice...) -> (carry..., y...)` over the leading axis of xs; ys are
// stacked. Returns (final carry..., ys...). Gradients flow to carry, xs and captured values. The
// backward pass keeps only the carries of each iteration and recomputes the body (the memory of one
// layer, plus a carry a layer).
struct ScanOptions {
  bool reverse = false;
};
Values Scan(const BodyFn& body, std::span<const Value> carry, std::span<const Value> xs,
            const ScanOptions& options = {});
// A scan over `length` steps whose body also receives nothing but the carry and the s32 step.
Values ForLoop(Graph& graph, int64_t length, const BodyFn& body, std::span<const Value> carry);
// While condition(state...) (scalar kPred) do body. Asking for a gradient through it is an error.
Values While(const BodyFn& condition, const BodyFn& body, std::span<const Value> state);
// predicate: scalar kPred. Both branches must return equal shapes. Gradients flow.
Values Cond(Value predicate, const BodyFn& on_true, const BodyFn& on_false,
            std::span<const Value> operands);
// body(xs) whose intermediate values are recomputed in the backward pass instead of kept.
Values Remat(const BodyFn& body, std::span<const Value> xs);
// body(xs) with its own gradient rule: vjp(xs, outputs, output_cotangents) -> one cotangent per x
// (an empty Value is zero). Cotangents of unused outputs come as zeros. A gradient asked for
// through a value that the body captured is an error: pass it in xs.
using VjpFn = std::function<Values(std::span<const Value> xs, std::span<const Value> outputs,
                                   std::span<const Value> cotangents)>;
Values CustomVjp(const BodyFn& body, const VjpFn& vjp, std::span<const Value> xs);

// ---- reverse-mode differentiation
// d(loss)/d(wrt_i): loss is a float scalar; the result has wrt_i's shape (zeros where loss does not
// depend on it). In a ShardMap body (xla/shard_map.h): of the mean of loss over all devices, as the
// gradient of the whole array, split like wrt_i.
Values Gradients(Value loss, std::span<const Value> wrt);
// sums_i + Gradients(loss, wrt)_i; an empty Value counts as zero. The gradients of a Scan's xs are
// added row by row as they come up, into the memory of the sum where that is donated: no second
// array of its size is ever there.
Values AddGradients(Value loss, std::span<const Value> wrt, std::span<const Value> sums);
// The general form: sum_i <cotangent_i, d output_i / d wrt>.
Values Vjp(std::span<const Value> outputs, std::span<const Value> cotangents,
           std::span<const Value> wrt);

}  // namespace forebay::xla
