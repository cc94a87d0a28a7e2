// Goal: the products of few rows are right for every number of rows, columns and elements, on any
// processor, and a row's bits depend on no other row.
#include "forebay/xla/ffi/few_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {
namespace {

enum class Code { kPortable, kAvx512 };

const FewRowsCode* CodeFor(Code code, DType dtype) {
  return code == Code::kPortable ? &PortableFewRows(dtype) : Avx512FewRows(dtype);
}

// Elements as f32 (already rounded to the dtype) and as they lie in memory.
struct Matrix {
  std::vector<float> values;
  std::vector<std::byte> bytes;
};

Matrix Random(Rng& rng, int64_t count, DType dtype) {
  Matrix out;
  const size_t size = ByteSize(dtype);
  out.bytes.resize(static_cast<size_t>(count) * size);
  for (int64_t i = 0; i < count; ++i) {
    auto bits = std::bit_cast<uint32_t>(static_cast<float>(rng.Uniform() * 2 - 1));
    if (dtype == DType::kBF16) bits &= 0xFFFF0000;
    out.values.push_back(std::bit_cast<float>(bits));
    for (size_t b = 0; b < size; ++b) {
      out.bytes[static_cast<size_t>(i) * size + b] =
          static_cast<std::byte>(bits >> (8 * (b + 4 - size)));
    }
  }
  return out;
}

double At(const Matrix& matrix, size_t i, DType dtype) {
  uint32_t bits = 0;
  const size_t size = ByteSize(dtype);
  std::memcpy(reinterpret_cast<char*>(&bits) + (4 - size), matrix.bytes.data() + i * size, size);
  return static_cast<double>(std::bit_cast<float>(bits));
}

// x as `code` wants it, laid out in two ranges.
std::vector<std::byte> Packed(const FewRowsCode& code, const Matrix& x, int64_t rows,
                              int64_t depth) {
  std::vector<std::byte> packed(static_cast<size_t>(code.packed_bytes(rows, depth)));
  if (packed.empty()) return packed;
  const int64_t middle = depth / 4 * 2;
  code.pack(x.bytes.data(), rows, depth, middle, depth, packed.data());
  code.pack(x.bytes.data(), rows, depth, 0, middle, packed.data());
  return packed;
}

// Columns [begin, end) of x times weight; the others stay `before`.
std::vector<float> Product(const FewRowsCode& code, const Matrix& x, const Matrix& weight,
                           int64_t rows, int64_t depth, int64_t count, int64_t begin, int64_t end,
                           float before = std::nanf("")) {
  std::vector<float> out(static_cast<size_t>(rows * count), before);
  const std::vector<std::byte> packed = Packed(code, x, rows, depth);
  code.columns({.x = x.bytes.data(),
                .packed = packed.data(),
                .weight = weight.bytes.data(),
                .out = out.data(),
                .rows = rows,
                .columns = count,
                .depth = depth},
               begin, end);
  return out;
}
std::vector<float> Product(const FewRowsCode& code, const Matrix& x, const Matrix& weight,
                           int64_t rows, int64_t depth, int64_t count) {
  return Product(code, x, weight, rows, depth, count, 0, count);
}

class FewRowsTest : public testing::TestWithParam<std::tuple<Code, DType>> {
 protected:
  void SetUp() override {
    code_ = CodeFor(std::get<0>(GetParam()), dtype_);
    if (code_ == nullptr) GTEST_SKIP() << "this processor has no AVX-512 (with bf16 products)";
  }
  const DType dtype_ = std::get<1>(GetParam());
  const FewRowsCode* code_ = nullptr;
};

TEST_P(FewRowsTest, EqualsTheSumInDoublePrecision) {
  Rng rng(1);
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 19, 32, 33, 49, 64}) {
    for (const int64_t depth : {1, 15, 16, 17, 31, 32, 33, 96, 101, 301}) {
      for (const int64_t count : {1, 2, 3, 4, 6, 11, 29, 50}) {
        const Matrix x = Random(rng, rows * depth, dtype_);
        const Matrix weight = Random(rng, count * depth, dtype_);
        const std::vector<float> out = Product(*code_, x, weight, rows, depth, count);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < count; ++c) {
            double sum = 0;
            for (int64_t k = 0; k < depth; ++k) {
              sum += static_cast<double>(x.values[static_cast<size_t>(r * depth + k)]) *
                     static_cast<double>(weight.values[static_cast<size_t>(c * depth + k)]);
            }
            ASSERT_NEAR(out[static_cast<size_t>(r * count + c)], sum, 2e-6 * std::sqrt(depth))
                << rows << " rows, depth " << depth << ", " << count << " columns: " << r << ", "
                << c;
          }
        }
      }
    }
  }
}

// Whatever the others hold and wherever it stands.
TEST_P(FewRowsTest, ARowsBitsDependOnNoOtherRow) {
  Rng rng(2);
  constexpr int64_t kDepth = 77, kColumns = 29;
  for (const int64_t rows : {3, 8, 16, 19, 45}) {
    const Matrix x = Random(rng, rows * kDepth, dtype_);
    const Matrix weight = Random(rng, kColumns * kDepth, dtype_);
    const std::vector<float> all = Product(*code_, x, weight, rows, kDepth, kColumns);
    const size_t row_bytes = static_cast<size_t>(kDepth) * ByteSize(dtype_);
    for (int64_t r = 0; r < rows; ++r) {
      Matrix moved = Random(rng, rows * kDepth, dtype_);
      const int64_t place = (r * 7 + 5) % rows;
      std::copy_n(x.bytes.begin() + static_cast<std::ptrdiff_t>(r * row_bytes), row_bytes,
                  moved.bytes.begin() + static_cast<std::ptrdiff_t>(place * row_bytes));
      const std::vector<float> other = Product(*code_, moved, weight, rows, kDepth, kColumns);
      for (int64_t c = 0; c < kColumns; ++c) {
        EXPECT_EQ(all[static_cast<size_t>(r * kColumns + c)],
                  other[static_cast<size_t>(place * kColumns + c)])
            << rows << ", " << r;
      }
    }
  }
}

// The same bits, however the columns are shared.
TEST_P(FewRowsTest, WritesItsColumnsAlone) {
  Rng rng(3);
  constexpr int64_t kDepth = 40, kColumns = 61;
  for (const int64_t rows : {6, 14, 30}) {
    const Matrix x = Random(rng, rows * kDepth, dtype_);
    const Matrix weight = Random(rng, kColumns * kDepth, dtype_);
    const std::vector<float> all = Product(*code_, x, weight, rows, kDepth, kColumns);
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, 4}, {4, 7}, {8, 19}, {16, 16}, {12, 61}, {48, 60}}) {
      const std::vector<float> out =
          Product(*code_, x, weight, rows, kDepth, kColumns, begin, end, -1000);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < kColumns; ++c) {
          const auto at = static_cast<size_t>(r * kColumns + c);
          EXPECT_EQ(out[at], c >= begin && c < end ? all[at] : -1000) << begin << ", " << c;
        }
      }
    }
  }
}

// An overflow must be seen (the engine ends such a request), and stay in its row.
TEST_P(FewRowsTest, WhatIsNotFiniteStaysInItsRow) {
  Rng rng(4);
  constexpr int64_t kDepth = 51, kColumns = 5;
  for (const int64_t rows : {5, 21}) {
    Matrix x = Random(rng, rows * kDepth, dtype_);
    const Matrix weight = Random(rng, kColumns * kDepth, dtype_);
    const std::vector<float> before = Product(*code_, x, weight, rows, kDepth, kColumns);
    const size_t size = ByteSize(dtype_);
    const uint32_t nan = std::bit_cast<uint32_t>(std::numeric_limits<float>::quiet_NaN());
    for (size_t b = 0; b < size; ++b) {
      x.bytes[static_cast<size_t>(2 * kDepth + 49) * size + b] =
          static_cast<std::byte>(nan >> (8 * (b + 4 - size)));
    }
    const std::vector<float> after = Product(*code_, x, weight, rows, kDepth, kColumns);
    for (size_t i = 0; i < after.size(); ++i) {
      if (i / kColumns == 2) {
        EXPECT_TRUE(std::isnan(after[i])) << i;
      } else {
        EXPECT_EQ(after[i], before[i]) << i;
      }
    }
  }
}

TEST_P(FewRowsTest, GatesAreActivationTimesUp) {
  Rng rng(5);
  constexpr int64_t kCount = 103;
  std::vector<float> gate, up;
  for (int64_t i = 0; i < kCount; ++i) {
    gate.push_back(static_cast<float>(rng.Uniform() * 40 - 20));
    up.push_back(static_cast<float>(rng.Uniform() * 4 - 2));
  }
  gate[0] = -300;
  gate[1] = 300;
  gate[2] = std::nanf("");
  for (const auto activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    Matrix out{.values = {}, .bytes = std::vector<std::byte>(kCount * ByteSize(dtype_))};
    code_->gate(activation, gate.data(), up.data(), kCount, out.bytes.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = static_cast<double>(gate[i]);
      const double y = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      const double active =
          activation == GateActivation::kSilu ? x / (1 + std::exp(-x)) : x / 2 * (1 + std::tanh(y));
      const double want = active * static_cast<double>(up[i]);
      const double got = At(out, i, dtype_);
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        const double rounding = dtype_ == DType::kBF16 ? 1.0 / 256 : 2e-6;
        EXPECT_NEAR(got, want, std::abs(want) * rounding + 1e-6) << x;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, FewRowsTest,
                         testing::Combine(testing::Values(Code::kPortable, Code::kAvx512),
                                          testing::Values(DType::kF32, DType::kBF16)));

}  // namespace
}  // namespace forebay::xla::ffi
