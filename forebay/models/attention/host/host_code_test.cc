// The code for each kind of processor computes the same, and attention as the books have it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/models/attention/host/kernels.h"
#include "forebay/models/attention/host/plan.h"
#include "forebay/models/attention/host/problem.h"

namespace forebay::models::attention::host {
namespace {

constexpr int64_t kTokens = 150, kHeads = 2, kGroup = 3;

struct Case {
  int64_t head_dim;
  float softcap;
  int32_t window;
};

using Floats = std::vector<float>;

Floats Normal(Rng& rng, int64_t count) {
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

// One row: a segment, padding, another. Everything but padding is random.
struct Row {
  explicit Row(const Case& c) : of(c), rng(static_cast<uint64_t>(c.head_dim)) {
    for (int32_t i = 0; i < kTokens; ++i) segments.push_back(i < 90 ? 1 : i < 97 ? 0 : 2);
    std::iota(places.begin(), places.end(), 0);
  }

  Case of;
  Rng rng;
  std::vector<int32_t> segments;
  std::vector<int32_t> places = std::vector<int32_t>(kTokens);
  Floats query = Normal(rng, kTokens* kHeads* kGroup* of.head_dim);
  Floats key = Normal(rng, kTokens* kHeads* of.head_dim);
  Floats value = Normal(rng, kTokens* kHeads* of.head_dim);
  Floats d_out = Normal(rng, kTokens* kHeads* kGroup* of.head_dim);
  Floats angles = Normal(rng, kTokens* of.head_dim / 2);
};

struct Results {
  Floats out, log_sum, d_query, d_key, d_value;
};

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};

Results Compute(const Code& code, const Row& row) {
  Results r{.out = Floats(row.query.size()),
            .log_sum = Floats(static_cast<size_t>(kTokens * kHeads * kGroup)),
            .d_query = Floats(row.query.size()),
            .d_key = Floats(row.key.size()),
            .d_value = Floats(row.key.size())};
  Floats cos, sin;
  for (const float angle : row.angles) {
    cos.push_back(std::cos(angle));
    sin.push_back(std::sin(angle));
  }
  const Plan plan = MakePlan({.rows = 1,
                              .query_segments = row.segments,
                              .query_places = row.places,
                              .key_segments = row.segments,
                              .window = row.of.window,
                              .queries_max = 32});
  const Problem p{.kv_heads = kHeads,
                  .group = kGroup,
                  .head_dim = row.of.head_dim,
                  .softcap = row.of.softcap,
                  .window = row.of.window,
                  .query_cos = cos.data(),
                  .query_sin = sin.data(),
                  .key_cos = cos.data(),
                  .key_sin = sin.data(),
                  .scale = 0.3F,
                  .query = row.query.data(),
                  .key = row.key.data(),
                  .value = row.value.data(),
                  .out = r.out.data(),
                  .log_sum = r.log_sum.data(),
                  .d_out = row.d_out.data(),
                  .d_query = r.d_query.data(),
                  .d_key = r.d_key.data(),
                  .d_value = r.d_value.data(),
                  .queries_max = 32,
                  .query_blocks = plan.query_blocks.data(),
                  .key_blocks = plan.key_blocks.data()};
  const auto bytes = static_cast<size_t>(code.scratch_floats(p)) * sizeof(float);
  const std::unique_ptr<float, Free> scratch(
      static_cast<float*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  // Whatever memory holds must not show.
  std::fill_n(scratch.get(), bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
  for (int64_t head = 0; head < kHeads; ++head) {
    for (const Block& block : plan.query_blocks) code.forward[0](p, block, head, scratch.get());
    for (int32_t k = 0; k < static_cast<int32_t>(plan.key_blocks.size()); ++k) {
      const Block& keys = plan.key_blocks[static_cast<size_t>(k)];
      code.backward_begin[0](p, keys, head, scratch.get());
      for (int32_t i = keys.first; i <= keys.last; ++i) {
        const Block& queries = plan.query_blocks[static_cast<size_t>(i)];
        code.backward_pair[0](p, keys, queries, head, scratch.get());
        code.backward_add(p, queries, head, {k == queries.first, k == queries.last}, scratch.get());
      }
      code.backward_end(p, keys, head, scratch.get());
    }
  }
  return r;
}

double Difference(const Floats& a, const Floats& b) {
  double worst = 0, scale = 1;
  for (size_t i = 0; i < a.size(); ++i) {
    // A NaN counts as the worst.
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::isnan(difference) ? 1e9 : std::max(worst, difference);
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return worst / scale;
}

// In double, token by token; log-sum-exps alone.
Floats PlainLogSums(const Row& row) {
  const int64_t half = row.of.head_dim / 2, queries = kHeads * kGroup;
  const auto rotated = [&](const Floats& x, int64_t token, int64_t heads, int64_t head) {
    std::vector<double> y(static_cast<size_t>(2 * half));
    for (int64_t i = 0; i < half; ++i) {
      const auto at = static_cast<size_t>((token * heads + head) * 2 * half + i);
      const double angle = row.angles[static_cast<size_t>(token * half + i)];
      const double a = x[at], b = x[at + static_cast<size_t>(half)];
      y[static_cast<size_t>(i)] = a * std::cos(angle) - b * std::sin(angle);
      y[static_cast<size_t>(half + i)] = b * std::cos(angle) + a * std::sin(angle);
    }
    return y;
  };
  Floats sums(static_cast<size_t>(kTokens * queries));
  for (int64_t t = 0; t < kTokens; ++t) {
    if (row.segments[static_cast<size_t>(t)] == 0) continue;
    for (int64_t a = 0; a < queries; ++a) {
      const auto query = rotated(row.query, t, queries, a);
      double sum = 0;
      for (int64_t k = std::max<int64_t>(0, t - row.of.window + 1); k <= t; ++k) {
        if (row.segments[static_cast<size_t>(k)] != row.segments[static_cast<size_t>(t)]) continue;
        const auto key = rotated(row.key, k, kHeads, a / kGroup);
        double score = 0.3 * std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
        if (row.of.softcap != 0) score = row.of.softcap * std::tanh(score / row.of.softcap);
        sum += std::exp(score);
      }
      sums[static_cast<size_t>(t * queries + a)] = static_cast<float>(std::log(sum));
    }
  }
  return sums;
}

TEST(HostCode, EveryProcessorsCodeComputesTheSame) {
  const int32_t no_window = std::numeric_limits<int32_t>::max();
  for (const Case& c : {Case{64, 0, no_window}, Case{6, 0, no_window}, Case{80, 2, no_window},
                        Case{34, 0, 40}, Case{128, 30, 1}}) {
    SCOPED_TRACE(c.head_dim);
    const Row row(c);
    const Results portable = Compute(*PortableCode(), row);
    EXPECT_LT(Difference(portable.log_sum, PlainLogSums(row)), 2e-6);
    for (const Code* code : {Avx2Code(), Avx512Code()}) {
      if (code == nullptr) continue;
      const Results own = Compute(*code, row);
      EXPECT_LT(Difference(own.out, portable.out), 2e-6);
      EXPECT_LT(Difference(own.log_sum, portable.log_sum), 2e-6);
      EXPECT_LT(Difference(own.d_query, portable.d_query), 2e-5);
      EXPECT_LT(Difference(own.d_key, portable.d_key), 2e-5);
      EXPECT_LT(Difference(own.d_value, portable.d_value), 2e-5);
    }
  }
}

// The best is one of those that this machine has.
TEST(HostCode, TheBestIsTaken) {
  const Code* best = Avx512Code() != nullptr ? Avx512Code()
                     : Avx2Code() != nullptr ? Avx2Code()
                                             : PortableCode();
  EXPECT_EQ(&BestCode(), best);
}

}  // namespace
}  // namespace forebay::models::attention::host
