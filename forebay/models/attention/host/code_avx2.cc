// Attention for processors with AVX2 and FMA. CMakeLists.txt has the flags; without them there is
// none.
#include "forebay/models/attention/host/problem.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "forebay/models/attention/host/tiles.h"
#include "forebay/models/attention/host/vectors.h"

namespace forebay::models::attention::host {
namespace {

struct Cpu : Width<8, 6, 2> {};
constexpr Code kCode = MakeCode<Cpu>();

}  // namespace

const Code* Avx2Code() {
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has ? &kCode : nullptr;
}

}  // namespace forebay::models::attention::host
#else
namespace forebay::models::attention::host {

const Code* Avx2Code() { return nullptr; }

}  // namespace forebay::models::attention::host
#endif
