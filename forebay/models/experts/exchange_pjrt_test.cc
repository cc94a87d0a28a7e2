// Tokens that travel to their experts get what all experts on one device would give them: values
// and gradients, however uneven the choice and however many rounds it takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/models/experts.h"
#include "forebay/models/parallel.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {
namespace {

using xla::Argument;
using xla::DType;
using xla::Value;
using xla::Values;

constexpr int64_t kTokens = 64, kTopK = 3, kExperts = 16, kWidth = 8, kFf = 6;

// x, cotangent, weights, experts, gate, up, down.
std::vector<Argument> Draw(const std::vector<float>& ids) {
  return {xla::RandomArgument({kTokens, kWidth}, 1),
          xla::RandomArgument({kTokens, kWidth}, 2),
          xla::RandomArgument({kTokens, kTopK}, 3),
          {{DType::kS32, {kTokens, kTopK}}, ids},
          xla::RandomArgument({kExperts, kFf, kWidth}, 4),
          xla::RandomArgument({kExperts, kFf, kWidth}, 5),
          xla::RandomArgument({kExperts, kWidth, kFf}, 6)};
}

// Different experts for each token, from those that `choose` (token, draw) names.
template <typename Choose>
std::vector<float> Ids(const Choose& choose) {
  std::vector<float> ids;
  for (int64_t token = 0; token < kTokens; ++token) {
    std::vector<float> own;
    while (static_cast<int64_t>(own.size()) < kTopK) {
      const auto id = static_cast<float>(choose(token));
      if (std::find(own.begin(), own.end(), id) == own.end()) own.push_back(id);
    }
    ids.insert(ids.end(), own.begin(), own.end());
  }
  return ids;
}

// The result and the gradients of x, weights, gate, up and down.
Values Evaluate(const Parallel& parallel, int64_t capacity, std::span<const Value> xs) {
  const Value out = SpreadExperts(parallel, xs[0], {xs[3], xs[2]}, {xs[4], xs[5], xs[6]}, capacity);
  Values results = {out};
  const Values wrt = {xs[0], xs[2], xs[4], xs[5], xs[6]};
  for (const Value& d : xla::Vjp(Values{out}, Values{xs[1]}, wrt)) results.push_back(d);
  return results;
}

std::vector<xla::Floats> OnDevices(int64_t devices, ExpertTraffic traffic, int64_t capacity,
                                   const std::vector<Argument>& arguments) {
  const xla::Mesh mesh = xla::Mesh::Create({.expert = devices}, devices).value();
  const std::vector<xla::PartitionSpec> in(7, xla::PartitionSpec{xla::kExpertAxis});
  const std::vector<xla::PartitionSpec> out(6, xla::PartitionSpec{xla::kExpertAxis});
  return xla::RunShardMap(
      {mesh, in, out},
      [&](std::span<const Value> xs) {
        return Evaluate(Parallel(true, {.expert_traffic = traffic}), capacity, xs);
      },
      arguments);
}

std::vector<xla::Floats> OnOneDevice(const std::vector<Argument>& arguments) {
  return xla::RunFn([](std::span<const Value> xs) { return Evaluate(Parallel(), 0, xs); },
                    arguments);
}

void ExpectEqual(const std::vector<xla::Floats>& got, const std::vector<xla::Floats>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size());
    double largest = 0, difference = 0;
    for (size_t j = 0; j < got[i].size(); ++j) {
      largest = std::max<double>(largest, std::abs(expected[i][j]));
      difference = std::max<double>(difference, std::abs(got[i][j] - expected[i][j]));
    }
    EXPECT_GT(largest, 0) << "result " << i;
    EXPECT_LE(difference, 1e-5 * (1 + largest)) << "result " << i;
  }
}

TEST(Exchange, EqualsOneDeviceHoweverUnevenTheChoice) {
  Rng rng(7);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(rng.Below(static_cast<uint64_t>(n)));
  };
  const std::vector<std::pair<std::string, std::vector<float>>> choices = {
      {"even", Ids([&](int64_t) { return below(kExperts); })},
      {"all on the last device", Ids([&](int64_t) { return kExperts - 1 - below(kTopK); })},
      {"most on the first, a few elsewhere",
       Ids([&](int64_t t) { return t % 9 == 0 ? below(kExperts) : below(kTopK); })},
      // Tokens of one device want another's experts, all others' their own.
      {"one device asks for much", Ids([&](int64_t t) { return (t < 8 ? 12 : 0) + below(4); })}};
  for (const auto& [name, ids] : choices) {
    const std::vector<Argument> arguments = Draw(ids);
    const auto expected = OnOneDevice(arguments);
    struct Run {
      int64_t devices, capacity;
    };
    // Capacity 3: up to 11 rounds, the last ones nearly empty. 0: one round if the choice is even.
    for (const Run& run : {Run{2, 3}, Run{4, 0}, Run{4, 3}, Run{8, 1}}) {
      SCOPED_TRACE(name + ", " + std::to_string(run.devices) + " devices, capacity " +
                   std::to_string(run.capacity));
      ExpectEqual(OnDevices(run.devices, ExpertTraffic::kAllToAll, run.capacity, arguments),
                  expected);
    }
  }
}

TEST(Exchange, GatheringGivesTheSame) {
  Rng rng(8);
  const auto arguments =
      Draw(Ids([&](int64_t) { return rng.Below(static_cast<uint64_t>(kExperts)); }));
  ExpectEqual(OnDevices(4, ExpertTraffic::kGather, 0, arguments), OnOneDevice(arguments));
}

TEST(Exchange, CapacityIsWhatAnEvenChoiceSendsAndAQuarterMore) {
  // 8 of 128 experts over 8 devices: 1 - (7/8)^8 = 0.656 of the tokens want each.
  EXPECT_EQ(ExchangeCapacity(4096, 8, 8), 3368);
  EXPECT_EQ(ExchangeCapacity(4096, 8, 64), 608);
  EXPECT_EQ(ExchangeCapacity(4096, 8, 2), 4096);  // all want both
  EXPECT_EQ(ExchangeCapacity(5, 1, 4), 5);        // never more than there are
}

}  // namespace
}  // namespace forebay::models
