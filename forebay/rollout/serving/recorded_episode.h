// RecordedEpisode: one harness's episode at the recording proxy: what it may still do, what it has
// done, and how it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/recording_proxy.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/episode_record.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {

// What a harness wrote last, as the rest of a sentence about its end: "; the last lines of ...".
std::string LastWords(const HarnessEnd& end);

// Thread-safe, for workers: everything may take as long as a template or a tokenizer does, or wait
// for another call that does.
class RecordedEpisode {
 public:
  RecordedEpisode(const ServedModel& model, const Assignment& assignment,
                  const RecordingOptions& options);

  const Assignment& assignment() const { return assignment_; }
  const RecordingOptions& options() const { return options_; }

  // A call begins: the run's sampling in place of the request's, or why it is refused.
  // `environment_us` is how long the harness worked since its newest call was answered.
  std::optional<ApiError> Begin(ApiRequest* request, int64_t environment_us);
  // Its prompts, as they go on from what was recorded, with no more new tokens for each answer than
  // are left of the episode's. All of that is kept for the call: `reserved` is for it to Release.
  std::optional<ApiError> Prompts(ApiRequest* request, std::vector<RecordedPrompt>* out,
                                  int64_t* reserved);
  // A choice of it is complete; `tools`: what its request declared. Nothing is recorded after
  // Close.
  void Add(const std::vector<std::string>& tools, const RecordedPrompt& prompt,
           const GenerateResult& result, const Answer& answer);
  void Release(int64_t reserved);
  // The engine failed.
  void Fail(const Status& status);

  // Rewards as they are posted; what is posted so far, as JSON, or what is wrong.
  std::optional<std::string> PostReward(std::string_view body, ApiError* error);

  // Once. As RecordingProxy::Close. `last_refusal`: how its last request that was refused was
  // answered, or "".
  Trajectory Close(const HarnessEnd& end, const std::string& last_refusal, int64_t environment_us,
                   Status* reason);

 private:
  Outcome Judge(const HarnessEnd& end, const std::string& last_refusal,
                const Trajectory& trajectory, Status* reason) const FB_REQUIRES(mutex_);

  const Assignment assignment_;
  const RecordingOptions options_;
  const int64_t started_us_;  // wall clock
  const TimePoint started_ = Now();
  Mutex mutex_;
  EpisodeRecord record_ FB_GUARDED_BY(mutex_);
  std::map<std::string, double> rewards_ FB_GUARDED_BY(mutex_);
  int64_t calls_ FB_GUARDED_BY(mutex_) = 0;
  int64_t reserved_ FB_GUARDED_BY(mutex_) = 0;  // tokens that calls which run may add
  bool out_of_tokens_ FB_GUARDED_BY(mutex_) = false;
  bool out_of_calls_ FB_GUARDED_BY(mutex_) = false;
  bool closed_ FB_GUARDED_BY(mutex_) = false;
  Status engine_failure_ FB_GUARDED_BY(mutex_);
};

}  // namespace forebay::rollout::serving
