// HostSample: the sampler as a host kernel, for the CPU. XLA's code makes an array of the logits'
// size of every step of the computation, and does each in a pass of its own.
#pragma once

#include "forebay/rollout/engine/sampler.h"

namespace forebay::rollout {

// What Sample computes (sampler.h), up to rounding: the same race of the same random bits. Where
// the graph calls host kernels (xla/host_product.h).
Sampled HostSample(const SampleInputs& inputs);

// One row of the kernel, for tests and for HostSample.
namespace host_sampler {

struct Row {
  const float* logits;
  int64_t vocab;
  float temperature;  // 0: greedy
  uint32_t key0, key1;
};
struct Draw {
  int32_t token;
  float logprob;
};
using DrawFn = Draw (*)(const Row&);
// For any processor, and with AVX-512; null where the processor has none.
DrawFn Portable();
DrawFn Avx512();

}  // namespace host_sampler

}  // namespace forebay::rollout
