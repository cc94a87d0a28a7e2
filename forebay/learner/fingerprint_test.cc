// Goal: a fingerprint changes with every bit that a step gives, and with nothing else.
#include "forebay/learner/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/learner/step_metrics.h"

namespace forebay::learner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StepMetrics Metrics() {
  StepMetrics m;
  m.step = 4;
  m.policy_version = 4;
  m.batch_sequence = 4;
  m.trajectory_ids = {5, 9, 7};
  m.batch_digest = "b";
  m.weights_digest = "w";
  m.loss = 0.1;
  m.grad_norm = 2;
  return m;
}

std::vector<std::string_view> Differing(const StepMetrics& a, const StepMetrics& b) {
  const auto left = Fingerprint(a);
  const auto right = Fingerprint(b);
  std::vector<std::string_view> names;
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].name, right[i].name);
    if (left[i].bits != right[i].bits) names.push_back(left[i].name);
  }
  return names;
}

std::vector<std::string_view> Changed(const std::function<void(StepMetrics&)>& change) {
  StepMetrics other = Metrics();
  change(other);
  return Differing(Metrics(), other);
}

TEST(Fingerprint, EveryFieldIsSeenAlone) {
  EXPECT_THAT(Changed([](StepMetrics&) {}), IsEmpty());
  EXPECT_THAT(Changed([](StepMetrics& m) { m.loss = std::nextafter(m.loss, 1); }),
              ElementsAre("loss"));
  EXPECT_THAT(Changed([](StepMetrics& m) { m.trajectory_ids = {5, 7, 9}; }),
              ElementsAre("trajectory_ids"));
  EXPECT_THAT(Changed([](StepMetrics& m) { m.trajectory_ids.pop_back(); }),
              ElementsAre("trajectory_ids"));
  EXPECT_THAT(Changed([](StepMetrics& m) { m.batch_digest = "c"; }), ElementsAre("trajectories"));
  EXPECT_THAT(Changed([](StepMetrics& m) { m.weights_digest = "x"; }), ElementsAre("weights"));
  EXPECT_THAT(Changed([](StepMetrics& m) { m.updated = true; }), ElementsAre("updated"));
  EXPECT_THAT(Changed([](StepMetrics& m) {
                m.grad_norm = 3;
                m.batch_sequence = 5;
              }),
              ElementsAre("batch", "grad_norm"));
}

TEST(Fingerprint, NumbersThatPrintAlikeStillDiffer) {
  EXPECT_THAT(Changed([](StepMetrics& m) { m.kl = -0.0; }), ElementsAre("kl"));
  StepMetrics nan = Metrics();
  nan.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Differing(nan, nan), IsEmpty());
  StepMetrics other = nan;
  other.loss = -nan.loss;
  EXPECT_THAT(Differing(nan, other), ElementsAre("loss"));
}

TEST(Fingerprint, TimesAndOriginDoNotCount) {
  EXPECT_THAT(Changed([](StepMetrics& m) {
                m.wall_s = m.device_s = m.pack_s = m.lease_wait_s = m.publish_s = 1;
                m.replay = true;
                m.programs = 7;
              }),
              IsEmpty());
}

TEST(Fingerprint, BitsAreReadable) {
  for (const auto& field : Fingerprint(Metrics())) {
    if (field.name == "loss") {
      EXPECT_EQ(ReadableBits(field.bits), "0.1");
    } else if (field.name == "batch") {
      EXPECT_EQ(ReadableBits(field.bits), "4");
    }
  }
  for (const std::string text : {"", "0x", "w", "0x123", "0xzz00000000000000", "12"}) {
    EXPECT_EQ(ReadableBits(text), text);
  }
}

TEST(Fingerprint, DigestsOfBytes) {
  EXPECT_EQ(BytesDigest("").size(), 32U);
  EXPECT_EQ(BytesDigest("abc"), BytesDigest("abc"));
  EXPECT_NE(BytesDigest("abc"), BytesDigest("abd"));
}

}  // namespace
}  // namespace forebay::learner
