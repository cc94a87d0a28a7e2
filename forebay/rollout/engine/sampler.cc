#include "forebay/rollout/engine/sampler.h"

#include <array>
#include <cstdint>
#include <utility>

#include "forebay/rollout/engine/host_sampler.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using xla::DType;
using xla::Value;

Value U32(xla::Graph& graph, uint32_t value) {
  return xla::Constant(graph, static_cast<double>(value), DType::kU32);
}

Value Right(Value x, uint32_t bits) { return xla::ShiftRightLogical(x, U32(*x.graph(), bits)); }

Value RotateLeft(Value x, uint32_t bits) {
  return xla::Or(xla::ShiftLeft(x, U32(*x.graph(), bits)), Right(x, 32 - bits));
}

// Threefry-2x32 with 20 rounds.
std::pair<Value, Value> Threefry(Value key0, Value key1, Value x0, Value x1) {
  xla::Graph& graph = *key0.graph();
  constexpr std::array<std::array<uint32_t, 4>, 2> kRotations = {
      {{13, 15, 26, 6}, {17, 29, 16, 24}}};
  const std::array<Value, 3> keys = {key0, key1,
                                     xla::Xor(xla::Xor(key0, key1), U32(graph, 0x1BD11BDA))};
  x0 = xla::Add(x0, keys[0]);
  x1 = xla::Add(x1, keys[1]);
  for (uint32_t block = 0; block < 5; ++block) {
    for (const uint32_t bits : kRotations[block % 2]) {
      x0 = xla::Add(x0, x1);
      x1 = xla::Xor(RotateLeft(x1, bits), x0);
    }
    x0 = xla::Add(x0, keys[(block + 1) % 3]);
    x1 = xla::Add(xla::Add(x1, keys[(block + 2) % 3]), U32(graph, block + 1));
  }
  return {x0, x1};
}

// MurmurHash3's 32-bit finalizer: a bijection that avalanches.
Value Finalize(Value x) {
  xla::Graph& graph = *x.graph();
  x = xla::Mul(xla::Xor(x, Right(x, 16)), U32(graph, 0x85EBCA6B));
  x = xla::Mul(xla::Xor(x, Right(x, 13)), U32(graph, 0xC2B2AE35));
  return xla::Xor(x, Right(x, 16));
}

}  // namespace

Value RandomBits(Value seeds_S2, Value counters_S, int64_t n) {
  xla::Graph& graph = *seeds_S2.graph();
  const Value seed0 = xla::Squeeze(xla::Slice(seeds_S2, 1, 0, 1), 1);
  const Value seed1 = xla::Squeeze(xla::Slice(seeds_S2, 1, 1, 2), 1);
  const Value counter = xla::BitcastConvert(counters_S, DType::kU32);
  const auto [key0_S, key1_S] = Threefry(seed0, seed1, counter, xla::ZerosLike(counter));
  const Value columns = xla::Iota(graph, {.dtype = DType::kU32, .dims = {1, n}}, 1);
  const Value key0 = xla::ExpandDims(key0_S, 1);
  const Value key1 = xla::ExpandDims(key1_S, 1);
  return Finalize(xla::Add(Finalize(xla::Xor(columns, key0)), key1));
}

Value Scaled(Value logits_SV, Value temperatures_S) {
  const Value temperature = xla::ExpandDims(temperatures_S, 1);
  const Value one = xla::ZerosLike(temperature) + 1.0;
  const Value random = xla::Compare(temperature, xla::ZerosLike(temperature), xla::Comparison::kGt);
  return logits_SV * (one / xla::Select(random, temperature, one));
}

Sampled Sample(const SampleInputs& inputs) {
  if (xla::UsesHostKernels(*inputs.logits_SV.graph())) return HostSample(inputs);
  const Value logits = inputs.logits_SV;
  const Value temperature = xla::ExpandDims(inputs.temperatures_S, 1);
  const Value random = xla::Compare(temperature, xla::ZerosLike(temperature), xla::Comparison::kGt);
  const Value scaled = Scaled(logits, inputs.temperatures_S);

  // A race: of clocks that ring after e / p, with e exponential, clock i rings first with
  // probability p_i / sum(p), so argmax(p / e) samples p. (The logarithm of this is the Gumbel-max
  // form, which costs another logarithm an element.) e = -log1p(-u) of a u with 32 bits: the small
  // e, which win, are the finely resolved ones.
  const Value bits = RandomBits(inputs.seeds_S2, inputs.positions_S, logits.dim(1));
  const Value u = xla::Min((xla::Convert(bits, DType::kF32) + 0.5) * 0x1.0p-32,
                           xla::Constant(*logits.graph(), 1.0 - 0x1.0p-24, DType::kF32));
  const Value shifted = scaled - xla::ReduceMax(scaled, {1}, true);
  const Value weights = xla::Exp(shifted);
  // Greedy compares logits: weights that differ by less than their rounding would tie.
  const Value score = xla::Select(random, weights / -xla::Log1p(-u), scaled);

  Sampled out;
  out.tokens_S = xla::ArgMax(score, 1);
  out.logprobs_S =
      xla::TakeAlongLast(shifted, out.tokens_S) - xla::Log(xla::ReduceSum(weights, {1}));
  return out;
}

}  // namespace forebay::rollout
