// The host form: attention/host/ through xla/custom_call.h, and what stays in the program around
// it.
//
// Legend: B rows, T tokens of a row at hand, R of a whole row, N = B * T, A query heads, K
// key/value heads, H head size.
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "forebay/models/attention/form.h"
#include "forebay/models/attention/host/kernels.h"
#include "forebay/models/layers.h"
#include "forebay/models/row_split.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models::attention {

using xla::DType;
using xla::Shape;
using xla::Value;
using xla::Values;

namespace {

class Host {
 public:
  explicit Host(const Setup& setup) : setup_(setup), heads_(setup.heads) {}

  // -> attended [N, A * H], log-sum-exps [N, A] and, where they were gathered, keys and values
  // [B * R, K * H].
  Values Forward(std::span<const Value> xs) const {
    const Values in = Operands(xs, Whole(xs[kKey]), Whole(xs[kValue]));
    Values out = xla::CallHost(
        host::ForwardKernel(), in,
        {.results = {xs[kQuery].shape(), {DType::kF32, {setup_.tokens(), heads_.query_heads}}},
         .numbers = Numbers()});
    if (gathers()) out.insert(out.end(), {in[1], in[2]});
    return out;
  }

  Values Backward(std::span<const Value> xs, std::span<const Value> outputs,
                  Value cotangent) const {
    const DType dtype = xs[kQuery].dtype();
    Values in =
        Operands(xs, gathers() ? outputs[2] : xs[kKey], gathers() ? outputs[3] : xs[kValue]);
    in.insert(in.end(), {outputs[0], outputs[1], As(cotangent, dtype)});
    const Shape keys{DType::kF32, in[1].dims()};
    const Values found = xla::CallHost(
        host::BackwardKernel(), in,
        {.results = {{DType::kF32, xs[kQuery].dims()}, keys, keys}, .numbers = Numbers()});
    Values result(xs.size());
    result[kQuery] = As(found[0], dtype);
    result[kKey] = As(Own(found[1]), dtype);
    result[kValue] = As(Own(found[2]), dtype);
    return result;
  }

 private:
  bool gathers() const { return setup_.split.devices() > 1; }

  // [N, n] of the tokens at hand -> of whole rows; and the sums over whole rows of the tokens at
  // hand.
  Value Whole(Value x) const {
    if (!gathers()) return x;
    const Value rows = xla::Reshape(x, {setup_.rows, setup_.length, x.dim(1)});
    return xla::Reshape(setup_.split.Gather(rows), {-1, x.dim(1)});
  }
  Value Own(Value x) const {
    if (!gathers()) return x;
    const Value rows = xla::Reshape(x, {setup_.rows, setup_.split.row_length(), x.dim(1)});
    return xla::Reshape(setup_.split.Scatter(rows), {-1, x.dim(1)});
  }

  Values Operands(std::span<const Value> xs, Value key, Value value) const {
    return {xs[kQuery],
            key,
            value,
            xs[kCos],
            xs[kSin],
            Whole(xs[kCos]),
            Whole(xs[kSin]),
            xs[kWindow],
            xs[kSegments],
            xs[kHostPlaces],
            xs[kHostKeySegments]};
  }
  std::map<std::string, double> Numbers() const {
    return {{"kv_heads", static_cast<double>(heads_.kv_heads)},
            {"head_dim", static_cast<double>(heads_.head_dim)},
            {"scale", setup_.scale},
            {"softcap", setup_.softcap},
            {"has_window", setup_.has_window ? 1 : 0}};
  }

  Setup setup_;
  HeadShape heads_;
};

}  // namespace

Values HostTables(Value segments_BT, const RowSplit& split) {
  xla::Graph& graph = *segments_BT.graph();
  Values places;
  for (const Value& start : split.Starts(graph, 0)) {
    places.push_back(xla::Iota(graph, {DType::kS32, {split.chunk_length()}}, 0) + start);
  }
  return {xla::Concatenate(places, 0),
          split.devices() > 1 ? split.Gather(segments_BT) : segments_BT};
}

Values HostForward(const Setup& setup, std::span<const Value> xs) {
  return Host(setup).Forward(xs);
}

Values HostBackward(const Setup& setup, std::span<const Value> xs, std::span<const Value> outputs,
                    Value cotangent) {
  return Host(setup).Backward(xs, outputs, cotangent);
}

}  // namespace forebay::models::attention
