#include "bench/publish_streams.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "bench/harness.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"

namespace forebay::bench {
namespace {

constexpr int32_t kNewTokens = 400;

}  // namespace

Streams::Streams(rollout::Engine& engine, std::function<void(const Token&)> on_token)
    : engine_(engine), on_token_(std::move(on_token)) {
  for (int64_t i = 0; i < kPublishSlots; ++i) Start(i);
}

int64_t Streams::cut() const {
  const MutexLock lock(mutex_);
  return cut_;
}

void Streams::Stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
}

void Streams::Start(int64_t stream) {
  rollout::GenerateRequest request{.prompt = {1, 2, static_cast<int32_t>(stream)},
                                   // Unequal, so that streams do not end together.
                                   .new_tokens_max = kNewTokens - static_cast<int32_t>(7 * stream),
                                   .seed = ++seed_,
                                   .priority = 1};  // behind who asks what is served
  if (stream == 0) {
    request.on_token = [this](const rollout::TokenEvent& event) {
      on_token_({Now(), event.policy_version, event.request});
    };
  }
  engine_.Generate(std::move(request),
                   [this, stream](const Result<rollout::GenerateResult>& result) {
                     {
                       const MutexLock lock(mutex_);
                       if (stopping_) return;
                       if (!result.ok()) ++cut_;
                       if (!result.ok()) return;
                     }
                     Start(stream);
                   });
}

Timing Measure(const std::vector<Token>& tokens, TimePoint published, int64_t version) {
  Timing out;
  std::vector<double> usual;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const double wait = 1e3 * Seconds(tokens[i].at - tokens[i - 1].at);
    if (tokens[i].policy_version == version) {
      out.continued = tokens[i].request == tokens[i - 1].request;
      out.taken_ms = 1e3 * Seconds(tokens[i].at - published);
      // The token of the new version, or one beside it: a swap may fall on either side of a step.
      double longest = wait;
      if (i + 1 < tokens.size()) {
        longest = std::max(longest, 1e3 * Seconds(tokens[i + 1].at - tokens[i].at));
      }
      if (usual.empty()) usual.push_back(wait);
      out.step_ms = Summarize(usual).median;
      out.stall_ms = std::max(0.0, longest - out.step_ms);
      return out;
    }
    if (tokens[i - 1].at >= published) usual.push_back(wait);
  }
  return out;
}

}  // namespace forebay::bench
