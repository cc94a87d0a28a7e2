// The steps of the block form. On one device, or where the keys of whole rows are gathered, there
// is one. Around the ring of the axis "context" there are as many as devices: queries stay, keys
// and values travel, so that a device never holds more keys than its own and the next ones.
//
// What travels is sent before the step's arithmetic and needed after it, so that a compiler which
// can send beside computing does. The gradients of keys and values travel with them, one step
// behind: a step adds to what has arrived what it found itself.
#include <cstdint>
#include <span>

#include "forebay/models/attention/blocks.h"
#include "forebay/models/attention/form.h"
#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models::attention {
namespace {

using xla::DType;
using xla::Value;
using xla::Values;

constexpr Operand kStepTables[] = {kFirst, kLast, kKeyPlaces, kKeySegments};

// The tables of one step, and of the steps from `first` to `limit`, stacked.
Blocks::Step StepAt(std::span<const Value> xs, int64_t step) {
  const auto at = [&](Operand which) {
    return xla::Squeeze(xla::Slice(xs[which], 0, step, step + 1), 0);
  };
  return {at(kFirst), at(kLast), at(kKeyPlaces), at(kKeySegments)};
}
Values StepsFrom(std::span<const Value> xs, int64_t first, int64_t limit) {
  Values tables;
  for (const Operand which : kStepTables) {
    tables.push_back(xla::Slice(xs[which], 0, first, limit));
  }
  return tables;
}

class Driver {
 public:
  explicit Driver(const Setup& setup) : setup_(setup), blocks_(setup) {}

  // -> attended [N, A * H], log-sum-exps and, where they were gathered, the blocks of keys.
  Values Forward(std::span<const Value> xs) const {
    const Value query = blocks_.Queries(xs);
    Values state;
    Blocks::Keys keys;
    if (setup_.ring) {
      state = ForwardRing(query, xs);
    } else {
      keys = WholeKeys(xs);
      state = blocks_.Forward(StepAt(xs, 0), keys, query, {}, xs);
    }
    const Values found = Blocks::Finish(state);
    Values out = {As(blocks_.JoinQueries(found[0]), xs[kQuery].dtype()), found[1]};
    if (gathers()) out.insert(out.end(), {keys.key, keys.value});
    return out;
  }

  Values Backward(std::span<const Value> xs, std::span<const Value> outputs,
                  Value cotangent) const {
    const DType dtype = xs[kQuery].dtype();
    const Value d_out = ZeroPadding(cotangent, xs[kSegments]);
    const Value delta = blocks_.HeadSums(As(d_out, DType::kF32) * As(outputs[0], DType::kF32));
    const Blocks::Asked asked{blocks_.Queries(xs), blocks_.DivideQueries(d_out), outputs[1], delta};
    Values found;
    if (setup_.ring) {
      found = BackwardRing(asked, xs);
      for (size_t i = 0; i < 2; ++i) found[i] = As(blocks_.JoinKeys(found[i]), dtype);
    } else {
      // What was gathered once is kept; what is only cut into blocks is cut again.
      const Blocks::Keys keys = gathers() ? Blocks::Keys{outputs[2], outputs[3]} : WholeKeys(xs);
      found = blocks_.Backward(StepAt(xs, 0), keys, asked, xs);
      for (size_t i = 0; i < 2; ++i) found[i] = Own(As(blocks_.JoinKeys(found[i]), dtype));
    }
    const RopeTables rope{xs[kCos], xs[kSin]};
    const int64_t head_dim = setup_.heads.head_dim;
    Values result(xs.size());
    result[kQuery] =
        RotateHeads(As(blocks_.JoinQueries(found[2]), dtype), rope, head_dim, setup_.scale, true);
    result[kKey] = RotateHeads(found[0], rope, head_dim, 1, true);
    result[kValue] = found[1];
    return result;
  }

 private:
  // [N, n] of the tokens at hand -> blocks of whole rows; and the sums over whole rows of the
  // tokens at hand.
  Value Whole(Value x) const {
    const Value rows = xla::Reshape(x, {setup_.rows, setup_.length, x.dim(1)});
    return blocks_.DivideKeys(xla::Reshape(setup_.split.Gather(rows), {-1, x.dim(1)}));
  }
  Value Own(Value x) const {
    const Value rows = xla::Reshape(x, {setup_.rows, setup_.split.row_length(), x.dim(1)});
    return xla::Reshape(setup_.split.Scatter(rows), {-1, x.dim(1)});
  }
  bool gathers() const { return !setup_.ring && setup_.split.devices() > 1; }
  Blocks::Keys WholeKeys(std::span<const Value> xs) const {
    return {Whole(blocks_.RotatedKey(xs)), Whole(blocks_.RealValue(xs))};
  }
  Blocks::Keys OwnKeys(std::span<const Value> xs) const {
    return {blocks_.DivideKeys(blocks_.RotatedKey(xs)), blocks_.DivideKeys(blocks_.RealValue(xs))};
  }
  Blocks::Keys Next(const Blocks::Keys& keys) const {
    return {setup_.split.Shift(keys.key), setup_.split.Shift(keys.value)};
  }

  // All steps but the last send; the last is outside of the loop.
  Values ForwardRing(Value query, std::span<const Value> xs) const {
    const int64_t last = setup_.split.devices() - 1;
    xla::Graph& graph = *query.graph();
    const Blocks::Keys own = OwnKeys(xs);
    const Value column = xla::Full(graph, 0, {DType::kF32, ColumnDims(query)});
    const Values carry = {own.key, own.value, xla::Full(graph, kMasked, column.shape()), column,
                          xla::Full(graph, 0, {DType::kF32, query.dims()})};
    const Values now = xla::Scan(
        [&](std::span<const Value> x) -> Values {
          const Blocks::Keys keys{x[0], x[1]};
          const Blocks::Keys next = Next(keys);
          const Values state =
              blocks_.Forward({x[5], x[6], x[7], x[8]}, keys, query, {x[2], x[3], x[4]}, xs);
          return {next.key, next.value, state[0], state[1], state[2]};
        },
        carry, StepsFrom(xs, 0, last));
    return blocks_.Forward(StepAt(xs, last), {now[0], now[1]}, query, {now[2], now[3], now[4]}, xs);
  }

  // The device's own keys first, outside of the loop.
  Values BackwardRing(const Blocks::Asked& asked, std::span<const Value> xs) const {
    const Blocks::Keys own = OwnKeys(xs);
    const Blocks::Keys next = Next(own);
    const Values first = blocks_.Backward(StepAt(xs, 0), own, asked, xs);
    const Values carry = {next.key, next.value, first[0], first[1], first[2]};
    const Values end = xla::Scan(
        [&](std::span<const Value> x) -> Values {
          const Blocks::Keys keys{x[0], x[1]};
          const Blocks::Keys after = Next(keys);
          const Value d_key = setup_.split.Shift(x[2]), d_value = setup_.split.Shift(x[3]);
          const Values found = blocks_.Backward({x[5], x[6], x[7], x[8]}, keys, asked, xs);
          return {after.key, after.value, d_key + found[0], d_value + found[1], x[4] + found[2]};
        },
        carry, StepsFrom(xs, 1, setup_.split.devices()));
    return {setup_.split.Shift(end[2]), setup_.split.Shift(end[3]), end[4]};
  }

  static xla::Dims ColumnDims(Value query) {
    xla::Dims dims = query.dims();
    dims.back() = 1;
    return dims;
  }

  Setup setup_;
  Blocks blocks_;
};

}  // namespace

Values BlocksForward(const Setup& setup, std::span<const Value> xs) {
  return Driver(setup).Forward(xs);
}

Values BlocksBackward(const Setup& setup, std::span<const Value> xs, std::span<const Value> outputs,
                      Value cotangent) {
  return Driver(setup).Backward(xs, outputs, cotangent);
}

}  // namespace forebay::models::attention
