// LearnerFixture: what tests of whole learners begin with: one device, the parity model, a folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "forebay/buffer/buffer.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/xla/client.h"

namespace forebay::learner {

class LearnerFixture : public ::testing::Test {
 protected:
  static constexpr int32_t kGroupSize = 4;

  // For SetUpTestSuite, with FOREBAY_SOURCE_DIR.
  static void StartSuite(const std::string& source_dir);
  // Nothing that a test put on the device is left there.
  static void TearDownTestSuite();
  ~LearnerFixture() override;

  // Rows of `tokens` tokens, that many a program.
  static LearnerOptions Options(int64_t steps, int64_t tokens);
  // Of the parity model's weights, where the state has none. CHECKs.
  static std::unique_ptr<Learner> MakeLearner(const LearnerOptions& options,
                                              LearnerState state = {});
  static std::unique_ptr<buffer::Buffer> OpenBuffer(const buffer::BufferOptions& options,
                                                    int64_t committed = 0);
  // Dispatched, appended and acknowledged. CHECKs.
  static void Append(buffer::Buffer& buffer, const Trajectory& trajectory);

  static inline xla::Client* client_ = nullptr;
  static inline ParityModel* parity_ = nullptr;
  const std::string folder_ = MakeTestFolder();
};

}  // namespace forebay::learner
