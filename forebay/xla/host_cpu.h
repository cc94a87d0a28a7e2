// What the processor that runs this has, for code that is compiled for several.
#pragma once

namespace forebay::xla {

// AVX-512 as all server processors with it have it: F, DQ, BW and VL.
inline bool HasAvx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0;
#else
  return false;
#endif
}

// Its products of bf16 pairs besides.
inline bool HasAvx512Bf16() {
#if defined(__x86_64__)
  return HasAvx512() && __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

}  // namespace forebay::xla
