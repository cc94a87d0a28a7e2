// Goal: the products of few rows are right for every number of rows, columns and elements, on any
// processor, and a row's bits are its own.
#include "forebay/xla/ffi/few_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {
namespace {

enum class Code { kPortable, kAvx512 };

FewRowsColumns CodeFor(Code code, DType dtype) {
  return code == Code::kPortable ? PortableFewRows(dtype) : Avx512FewRows(dtype);
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

std::vector<float> Product(FewRowsColumns columns, const Matrix& x, const Matrix& weight,
                           int64_t rows, int64_t depth, int64_t count) {
  std::vector<float> out(static_cast<size_t>(rows * count), std::nanf(""));
  columns({.x = x.bytes.data(),
           .weight = weight.bytes.data(),
           .out = out.data(),
           .rows = rows,
           .columns = count,
           .depth = depth},
          0, count);
  return out;
}

class FewRowsTest : public testing::TestWithParam<std::tuple<Code, DType>> {
 protected:
  void SetUp() override {
    columns_ = CodeFor(std::get<0>(GetParam()), dtype_);
    if (columns_ == nullptr) GTEST_SKIP() << "this processor has no AVX-512 with bf16 products";
  }
  const DType dtype_ = std::get<1>(GetParam());
  FewRowsColumns columns_ = nullptr;
};

TEST_P(FewRowsTest, EqualsTheSumInDoublePrecision) {
  Rng rng(1);
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 19, 33}) {
    for (const int64_t depth : {1, 15, 16, 17, 31, 32, 33, 96, 101}) {
      for (const int64_t count : {1, 2, 3, 4, 6, 11}) {
        const Matrix x = Random(rng, rows * depth, dtype_);
        const Matrix weight = Random(rng, count * depth, dtype_);
        const std::vector<float> out = Product(columns_, x, weight, rows, depth, count);
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

TEST_P(FewRowsTest, ARowsBitsAreItsOwn) {
  Rng rng(2);
  constexpr int64_t kRows = 19, kDepth = 77, kColumns = 9;
  const Matrix x = Random(rng, kRows * kDepth, dtype_);
  const Matrix weight = Random(rng, kColumns * kDepth, dtype_);
  const std::vector<float> all = Product(columns_, x, weight, kRows, kDepth, kColumns);
  const size_t row_bytes = static_cast<size_t>(kDepth) * ByteSize(dtype_);
  for (int64_t r = 0; r < kRows; ++r) {
    const auto first = x.bytes.begin() + static_cast<std::ptrdiff_t>(r * row_bytes);
    const Matrix one{.values = {},
                     .bytes = {first, first + static_cast<std::ptrdiff_t>(row_bytes)}};
    const std::vector<float> alone = Product(columns_, one, weight, 1, kDepth, kColumns);
    for (int64_t c = 0; c < kColumns; ++c) {
      EXPECT_EQ(all[static_cast<size_t>(r * kColumns + c)], alone[static_cast<size_t>(c)]) << r;
    }
  }
}

TEST_P(FewRowsTest, WritesItsColumnsAlone) {
  Rng rng(3);
  constexpr int64_t kRows = 6, kDepth = 40, kColumns = 19;
  const Matrix x = Random(rng, kRows * kDepth, dtype_);
  const Matrix weight = Random(rng, kColumns * kDepth, dtype_);
  const std::vector<float> all = Product(columns_, x, weight, kRows, kDepth, kColumns);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 4}, {4, 7}, {8, 19}, {16, 16}}) {
    std::vector<float> out(static_cast<size_t>(kRows * kColumns), -1000);
    columns_({.x = x.bytes.data(),
              .weight = weight.bytes.data(),
              .out = out.data(),
              .rows = kRows,
              .columns = kColumns,
              .depth = kDepth},
             begin, end);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kColumns; ++c) {
        const auto at = static_cast<size_t>(r * kColumns + c);
        EXPECT_EQ(out[at], c >= begin && c < end ? all[at] : -1000) << begin << ", " << c;
      }
    }
  }
}

// An overflow must be seen (the engine ends such a request), and stay in its row.
TEST_P(FewRowsTest, WhatIsNotFiniteStaysInItsRow) {
  Rng rng(4);
  constexpr int64_t kRows = 5, kDepth = 50, kColumns = 5;
  Matrix x = Random(rng, kRows * kDepth, dtype_);
  const Matrix weight = Random(rng, kColumns * kDepth, dtype_);
  const std::vector<float> before = Product(columns_, x, weight, kRows, kDepth, kColumns);
  const size_t size = ByteSize(dtype_);
  const uint32_t nan = std::bit_cast<uint32_t>(std::numeric_limits<float>::quiet_NaN());
  for (size_t b = 0; b < size; ++b) {
    x.bytes[static_cast<size_t>(2 * kDepth + 49) * size + b] =
        static_cast<std::byte>(nan >> (8 * (b + 4 - size)));
  }
  const std::vector<float> after = Product(columns_, x, weight, kRows, kDepth, kColumns);
  for (size_t i = 0; i < after.size(); ++i) {
    if (i / kColumns == 2) {
      EXPECT_TRUE(std::isnan(after[i])) << i;
    } else {
      EXPECT_EQ(after[i], before[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, FewRowsTest,
                         testing::Combine(testing::Values(Code::kPortable, Code::kAvx512),
                                          testing::Values(DType::kF32, DType::kBF16)));

}  // namespace
}  // namespace forebay::xla::ffi
