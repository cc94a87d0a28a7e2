// ChunkedLogprobs: log softmax of the output head without the [tokens, vocabulary] array.
//
// Legend: N tokens, D width, V vocabulary, C tokens of a chunk.
// Measured on 2 cores (1024 tokens, SmolLM2's head, forward and backward): chunks of 512 unrolled
// 0.61 s, 256 unrolled 0.69 s, 256 in a scan 0.82 s; chunks over the vocabulary instead 0.61 s. The
// difference is the head's gradient (113 MB), which each further chunk reads and writes again:
// hence few chunks are unrolled and many are scanned.
//
// Spread over a mesh, each device along tensor has the head's rows of its part of the vocabulary:
// maxima and sums over the vocabulary are then formed over the devices, and what the backward pass
// gives is each device's term.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "forebay/models/layers.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Value;
using xla::Values;

constexpr int64_t kUnrolledMax = 4;

// What one chunk needs; all but the head have C rows.
class Chunks {
 public:
  Chunks(double temperature, int64_t chunk, bool entropy, const Parallel& parallel)
      : temperature_(temperature), chunk_(chunk), entropy_(entropy), parallel_(parallel) {}

  // xs: hidden [N, D], head [V, D], targets [N] -> logprobs, log-sum-exps and, if asked for,
  // entropies [N].
  Values Forward(std::span<const Value> xs) const {
    const Value head = Narrow(xs[1], xs);
    const Value rows[] = {xs[0], xs[2]};
    return MapRows(rows, {},
                   [&](std::span<const Value> in, std::span<const Value>) {
                     return Mapped{ForwardChunk(in[0], head, in[1]), {}};
                   })
        .rows;
  }

  Values Backward(std::span<const Value> xs, std::span<const Value> outputs,
                  Value cotangent) const {
    const Value head = Narrow(xs[1], xs);
    // Each device has a share of what is asked of the logprobs, which all have.
    const Value rows[] = {xs[0], xs[2], outputs[1], parallel_.Sum(cotangent)};
    const Value sums[] = {xla::Full(*head.graph(), 0, {DType::kF32, head.dims()})};
    const Mapped mapped =
        MapRows(rows, sums, [&](std::span<const Value> in, std::span<const Value> sum) {
          return BackwardChunk(in, head, sum.empty() ? Value() : sum[0]);
        });
    return {mapped.rows[0], As(mapped.sums[0], xs[1].dtype()), Value()};
  }

 private:
  struct Mapped {
    Values rows, sums;
  };

  // x in the dtype of products: bf16 if either side is, else f32.
  static Value Narrow(Value x, std::span<const Value> xs) {
    const bool wide = xs[0].dtype() == DType::kF32 && xs[1].dtype() == DType::kF32;
    return As(x, wide ? DType::kF32 : DType::kBF16);
  }

  Value Logits(Value hidden, Value head) const {
    const Value scaled = As(hidden, DType::kF32) * (1.0 / temperature_);
    return xla::DotGeneral(As(scaled, head.dtype()), head, {{}, {}, {1}, {1}}, DType::kF32);
  }

  Values ForwardChunk(Value hidden, Value head, Value targets) const {
    xla::Graph& graph = *hidden.graph();
    const Value zero = xla::Constant(graph, 0, DType::kF32);
    const Value logits = Logits(hidden, head);
    const Value peak = parallel_.Max(xla::ReduceMax(logits, {-1}, true));
    const Value weights = xla::Exp(logits - peak);
    const Parallel::Local target = parallel_.ToLocal(targets, head.dim(0));
    // All sums over the vocabulary at once: over a mesh that is one message.
    Values parts = {xla::ReduceSum(weights, {-1}),
                    xla::Select(target.mine, xla::TakeAlongLast(logits, target.index), zero)};
    if (entropy_) parts.push_back(xla::ReduceSum(weights * logits, {-1}));
    for (Value& part : parts) part = xla::ExpandDims(part, 0);
    const Value sums = parallel_.Sum(xla::Concatenate(parts, 0));
    const auto sum_of = [&](int64_t i) { return xla::Squeeze(xla::Slice(sums, 0, i, i + 1), 0); };
    const Value log_sum = xla::Squeeze(peak, -1) + xla::Log(sum_of(0));
    const Value real = xla::Compare(targets, xla::Constant(graph, 0, DType::kS32), Comparison::kGe);
    Values out = {xla::Select(real, sum_of(1) - log_sum, zero), log_sum};
    if (entropy_) out.push_back(log_sum - sum_of(2) / sum_of(0));
    return out;
  }

  // in: hidden, targets, log-sum-exps, cotangent. d(logits) = (onehot - softmax) * cotangent.
  Mapped BackwardChunk(std::span<const Value> in, Value head, Value head_sum) const {
    xla::Graph& graph = *head.graph();
    const Value zero = xla::Constant(graph, 0, DType::kF32);
    const Value real = xla::Compare(in[1], xla::Constant(graph, 0, DType::kS32), Comparison::kGe);
    const Value column = xla::ExpandDims(xla::Select(real, in[3], zero), 1);
    const Value logits = Logits(in[0], head);
    const Value ids = xla::Iota(graph, {DType::kS32, {1, head.dim(0)}}, 1);
    const Parallel::Local target = parallel_.ToLocal(in[1], head.dim(0));
    const Value none = xla::Constant(graph, -1, DType::kS32);
    const Value wanted = xla::Select(target.mine, target.index, none);
    const Value hit = xla::Compare(ids, xla::ExpandDims(wanted, 1), Comparison::kEq);
    const Value softmax = xla::Exp(logits - xla::ExpandDims(in[2], 1));
    const Value d_logits = xla::Select(hit, column, zero) - softmax * column;
    const Value scaled = As(d_logits * (1.0 / temperature_), head.dtype());
    const Value hidden = As(in[0], head.dtype());
    const Value d_hidden = xla::DotGeneral(scaled, head, {{}, {}, {1}, {0}}, DType::kF32);
    const Value d_head = xla::DotGeneral(scaled, hidden, {{}, {}, {0}, {0}}, DType::kF32);
    return {{As(d_hidden, in[0].dtype())}, {head_sum.empty() ? d_head : head_sum + d_head}};
  }

  // `then`, to be computed only once `first` is there.
  static Values After(const Values& first, const Values& then) {
    Values all = first;
    all.insert(all.end(), then.begin(), then.end());
    const Values ordered = xla::OptimizationBarrier(all);
    return {ordered.begin() + static_cast<int64_t>(first.size()), ordered.end()};
  }

  // Calls `body` on slices of C rows; concatenates the row results, passes the sums on (empty for
  // the first chunk of an unrolled pass). The last chunk of a scan is padded: with target -1, whose
  // gradient is zero.
  template <typename Body>
  Mapped MapRows(std::span<const Value> rows, std::span<const Value> zero_sums,
                 const Body& body) const {
    const int64_t count = rows[0].dim(0);
    const int64_t chunks = (count + chunk_ - 1) / chunk_;
    if (chunks > kUnrolledMax) return ScanRows(rows, zero_sums, chunks, body);
    std::vector<Values> parts;
    Values sums, previous;
    for (int64_t start = 0; start < count; start += chunk_) {
      Values slices;
      for (const Value& row : rows) {
        slices.push_back(xla::Slice(row, 0, start, std::min(count, start + chunk_)));
      }
      // Or XLA may compute all chunks' logits before it reduces any.
      if (!previous.empty()) slices = After(previous, slices);
      Mapped mapped = body(slices, sums);
      previous = mapped.sums;
      previous.insert(previous.end(), mapped.rows.begin(), mapped.rows.end());
      parts.resize(mapped.rows.size());
      for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(mapped.rows[i]);
      sums = mapped.sums;
    }
    Mapped out{{}, sums};
    for (const Values& part : parts) {
      out.rows.push_back(part.size() == 1 ? part[0] : xla::Concatenate(part, 0));
    }
    return out;
  }

  template <typename Body>
  Mapped ScanRows(std::span<const Value> rows, std::span<const Value> zero_sums, int64_t chunks,
                  const Body& body) const {
    const int64_t count = rows[0].dim(0);
    Values stacked;
    for (const Value& row : rows) {
      const double filler = row.dtype() == DType::kS32 ? -1 : 0;
      const Value padded = xla::Pad(row, 0, 0, chunks * chunk_ - count, filler);
      xla::Dims dims = {chunks, chunk_};
      dims.insert(dims.end(), row.dims().begin() + 1, row.dims().end());
      stacked.push_back(xla::Reshape(padded, dims));
    }
    const size_t sums = zero_sums.size();
    const Values scanned = xla::Scan(
        [&](std::span<const Value> in) {
          Mapped mapped = body(in.subspan(sums), in.first(sums));
          Values out = mapped.sums;
          out.insert(out.end(), mapped.rows.begin(), mapped.rows.end());
          return out;
        },
        zero_sums, stacked);
    Mapped out;
    for (size_t i = 0; i < scanned.size(); ++i) {
      if (i < sums) {
        out.sums.push_back(scanned[i]);
        continue;
      }
      xla::Dims dims = {chunks * chunk_};
      dims.insert(dims.end(), scanned[i].dims().begin() + 2, scanned[i].dims().end());
      out.rows.push_back(xla::Slice(xla::Reshape(scanned[i], dims), 0, 0, count));
    }
    return out;
  }

  double temperature_;
  int64_t chunk_;
  bool entropy_;
  Parallel parallel_;
};

}  // namespace

Value ChunkedLogprobs(Value hidden_ND, Value head_VD, Value targets_N, double temperature,
                      int64_t chunk, Value* entropy_N, const Parallel& parallel) {
  xla::Graph& graph = *hidden_ND.graph();
  if (!(temperature > 0) || chunk < 1) {
    return graph.Fail("ChunkedLogprobs: the temperature and the chunk must be positive");
  }
  const Chunks chunks(temperature, chunk, entropy_N != nullptr, parallel);
  const Value xs[] = {hidden_ND, head_VD, targets_N};
  const Values outputs = xla::CustomVjp(
      [chunks](std::span<const Value> in) { return chunks.Forward(in); },
      [chunks](std::span<const Value> in, std::span<const Value> out,
               std::span<const Value> d_out) { return chunks.Backward(in, out, d_out[0]); },
      xs);
  if (entropy_N != nullptr) *entropy_N = xla::StopGradient(outputs[2]);
  return outputs[0];
}

}  // namespace forebay::models
