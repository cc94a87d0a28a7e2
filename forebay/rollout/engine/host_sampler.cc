#include "forebay/rollout/engine/host_sampler.h"

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "forebay/base/status.h"
#include "forebay/rollout/engine/sampler.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {

using xla::DType;
using xla::Value;

namespace {

// Threefry-2x32 with 20 rounds, as RandomBits has it.
std::array<uint32_t, 2> Threefry(uint32_t key0, uint32_t key1, uint32_t x0, uint32_t x1) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAU};
  x0 += keys[0];
  x1 += keys[1];
  for (uint32_t block = 0; block < 5; ++block) {
    for (const int bits : kRotations[block % 2]) {
      x0 += x1;
      x1 = std::rotl(x1, bits) ^ x0;
    }
    x0 += keys[(block + 1) % 3];
    x1 += keys[(block + 2) % 3] + block + 1;
  }
  return {x0, x1};
}

// Logits [S, V], positions [S], temperatures [S], seeds [S, 2] (s32 bits) -> tokens,
// log-probabilities [S].
Status Run(const xla::HostCall& call) {
  const std::span<const xla::HostArray> in = call.operands();
  const int64_t rows = in[0].dims[0], vocab = in[0].dims[1];
  const auto* logits = in[0].as<const float>();
  const auto* positions = in[1].as<const uint32_t>();
  const auto* temperatures = in[2].as<const float>();
  const auto* seeds = in[3].as<const uint32_t>();
  auto* tokens = call.results()[0].as<int32_t>();
  auto* logprobs = call.results()[1].as<float>();
  const host_sampler::DrawFn fast = host_sampler::Avx512();
  const host_sampler::DrawFn draw = fast == nullptr ? host_sampler::Portable() : fast;
  call.ForEach(rows, [&](int64_t row) {
    const auto [key0, key1] = Threefry(seeds[2 * row], seeds[2 * row + 1], positions[row], 0);
    const host_sampler::Draw drawn = draw({.logits = logits + row * vocab,
                                           .vocab = vocab,
                                           .temperature = temperatures[row],
                                           .key0 = key0,
                                           .key1 = key1});
    tokens[row] = drawn.token;
    logprobs[row] = drawn.logprob;
  });
  return OkStatus();
}

}  // namespace

Sampled HostSample(const SampleInputs& inputs) {
  const xla::Dims slots = inputs.positions_S.dims();
  const Value xs[] = {inputs.logits_SV, inputs.positions_S, inputs.temperatures_S,
                      xla::BitcastConvert(inputs.seeds_S2, DType::kS32)};
  const xla::Values out = xla::CallHost(xla::MakeHostKernel<Run>("sample"), xs,
                                        {.results = {{DType::kS32, slots}, {DType::kF32, slots}}});
  return {.tokens_S = out[0], .logprobs_S = out[1]};
}

}  // namespace forebay::rollout
