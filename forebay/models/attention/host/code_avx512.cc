// Attention for processors with AVX-512. CMakeLists.txt has the flags; without them there is none.
#include "forebay/models/attention/host/problem.h"

#if defined(__AVX512F__)
#include "forebay/models/attention/host/tiles.h"
#include "forebay/models/attention/host/vectors.h"

namespace forebay::models::attention::host {
namespace {

struct Cpu : Width<16, 6, 4> {};
constexpr Code kCode = MakeCode<Cpu>();

}  // namespace

const Code* Avx512Code() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  return has ? &kCode : nullptr;
}

}  // namespace forebay::models::attention::host
#else
namespace forebay::models::attention::host {

const Code* Avx512Code() { return nullptr; }

}  // namespace forebay::models::attention::host
#endif
