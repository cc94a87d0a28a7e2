#include <algorithm>
#include <cstdint>

#include "forebay/xla/ffi/few_rows.h"
#include "forebay/xla/host_cpu.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/shape.h"

#if defined(__x86_64__)
#include "forebay/xla/ffi/avx512.h"
#include "forebay/xla/ffi/few_rows_dots.h"
#include "forebay/xla/ffi/few_rows_lanes.h"
#endif

namespace forebay::xla::ffi {

#if defined(__x86_64__)
namespace {

template <typename Type>
int64_t PackedBytes(int64_t rows, int64_t depth) {
  return rows <= dots::kRowsMax ? 0 : lanes::PackedBytes<Type>(rows, depth);
}

int64_t Tile(int64_t rows) {
  if (rows <= dots::kRowsMax) return dots::kTileColumns;
  return rows <= kLanes ? lanes::kColumnsOf1 : lanes::kColumnsOf2;
}

template <typename Type>
void Columns(const FewRows& product, int64_t begin, int64_t end) {
  if (product.rows <= dots::kRowsMax) return dots::Columns<Type>(product, begin, end);
  lanes::Columns<Type>(product, begin, end);
}

// e^x, within 2e-7 of it; x is brought into [-87, 88] first.
FB_AVX512_INLINE __m512 Exp(__m512 x) {
  using Integers = int32_t __attribute__((vector_size(64)));
  const __m512 zero = _mm512_setzero_ps();
  x = x < zero + 88.0F ? x : zero + 88.0F;
  x = x > zero - 87.0F ? x : zero - 87.0F;
  const auto power =
      __builtin_convertvector(x * 1.44269504F + (x > zero ? zero + 0.5F : zero - 0.5F), Integers);
  const __m512 whole = __builtin_convertvector(power, __m512);
  const __m512 r = x - whole * 0.693359375F + whole * 2.12194440e-4F;
  __m512 p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return (__m512)((Integers)p + (power << 23));
}

// x / (1 + e^-z): silu for z = x, and the tanh form of gelu for z = 2 y of its tanh(y).
FB_AVX512_INLINE __m512 Activate(GateActivation activation, __m512 x) {
  const __m512 z =
      activation == GateActivation::kSilu ? x : (x + x * x * x * 0.044715F) * 1.5957691216F;
  const __m512 active = x / (Exp(-z) + 1.0F);
  return x == x ? active : x;
}

template <typename Type>
FB_AVX512 void Gate(GateActivation activation, const float* gate, const float* up, int64_t count,
                    void* out) {
  auto* to = static_cast<typename Type::Element*>(out);
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto mask = static_cast<__mmask16>((1U << std::min(kLanes, count - i)) - 1);
    const __m512 x = Activate(activation, _mm512_maskz_loadu_ps(mask, gate + i)) *
                     _mm512_maskz_loadu_ps(mask, up + i);
    if constexpr (Type::kPerUnit == 1) {
      _mm512_mask_storeu_ps(to + i, mask, x);
    } else {
      _mm256_mask_storeu_epi16(to + i, mask, (__m256i)_mm512_cvtneps_pbh(x));
    }
  }
}

template <typename Type>
constexpr FewRowsCode kCode = {.packed_bytes = PackedBytes<Type>,
                               .pack = lanes::Pack<Type>,
                               .tile = Tile,
                               .columns = Columns<Type>,
                               .gate = Gate<Type>};

}  // namespace

const FewRowsCode* Avx512FewRows(DType dtype) {
  if (dtype == DType::kBF16) return HasAvx512Bf16() ? &kCode<Bf16> : nullptr;
  return HasAvx512() ? &kCode<F32> : nullptr;
}

#else

const FewRowsCode* Avx512FewRows(DType) { return nullptr; }

#endif

}  // namespace forebay::xla::ffi
