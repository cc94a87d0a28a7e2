#include "forebay/learner/learner_fixture_testing.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::learner {

void LearnerFixture::StartSuite(const std::string& source_dir) {
  client_ = MakeClient().release();
  parity_ = new ParityModel(LoadParityModel(source_dir));
}

void LearnerFixture::TearDownTestSuite() {
  EXPECT_EQ(client_->live_buffers(), 0);
  delete parity_;
  delete client_;
}

LearnerFixture::~LearnerFixture() { std::filesystem::remove_all(folder_); }

LearnerOptions LearnerFixture::Options(int64_t steps, int64_t tokens) {
  LearnerOptions options{.steps = steps};
  options.schedule.learning_rate = 3e-3;
  options.tokens_max = tokens;
  options.row_lengths = {tokens};
  options.tokens_per_program = tokens;
  options.logprob_chunk = tokens;
  options.lease_deadline_s = 60;
  return options;
}

std::unique_ptr<Learner> LearnerFixture::MakeLearner(const LearnerOptions& options,
                                                     LearnerState state) {
  if (state.train.params.empty()) state.train.params = parity_->tensors;
  auto learner = Learner::Create(options, *client_, *parity_->model, state);
  FB_CHECK(learner.ok(), learner.status().ToString());
  return std::move(*learner);
}

std::unique_ptr<buffer::Buffer> LearnerFixture::OpenBuffer(const buffer::BufferOptions& options,
                                                           int64_t committed) {
  buffer::Recovery recovery;
  auto buffer = buffer::Buffer::Open(options, committed, {}, &recovery);
  FB_CHECK(buffer.ok(), buffer.status().ToString());
  return std::move(*buffer);
}

void LearnerFixture::Append(buffer::Buffer& buffer, const Trajectory& trajectory) {
  FB_CHECK(buffer.Dispatch(trajectory.id).ok(), "dispatch");
  const Status appended =
      buffer.AppendEncodedAndWait(Encode(trajectory), {.deadline = Now() + FromSeconds(30)});
  FB_CHECK(appended.ok(), appended.ToString());
}

}  // namespace forebay::learner
