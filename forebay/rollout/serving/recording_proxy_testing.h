// The fixture of the recording proxy's tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/recording_proxy.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {

inline Json Message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

class RecordingProxyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = RecordingProxy::Start(*bench_.loop, bench_.model(), {.workers = &workers_});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    proxy_ = std::move(*made);
    bench_.base = proxy_->addresses().front();
  }
  void TearDown() override {
    bench_.loop->Spawn(proxy_->Stop(Now()), [this] { bench_.loop->Stop(); });
    bench_.loop->Run();
  }
  // Opens an episode and sends its key from now on.
  void Open(RecordingOptions options = {}) {
    options.environment = "harness";
    access_ =
        proxy_->Open({.id = {.trajectory_id = 7, .group_id = 2, .member = 1}, .seed = 5}, options);
    bench_.key = access_.api_key;
  }
  Json Ask(const std::vector<Json>& messages, Json more = Json::object()) {
    Json body = {{"model", "any"}, {"messages", messages}};
    body.update(more);
    const HttpResponse response = bench_.Post(kChat, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.status == 200 ? Parsed(response)["choices"][0]["message"] : Json();
  }
  HttpResponse PostReward(double reward) {
    return bench_.Post("/v1/episodes/7/reward", {{"reward", reward}});
  }
  Trajectory Close(const HarnessEnd& end = {}) {
    reason_ = OkStatus();
    std::optional<Trajectory> out;
    const auto close = [&]() -> Task<void> {
      Task<Trajectory> closing = proxy_->Close(access_.api_key, end, &reason_);
      out = co_await std::move(closing);
    };
    bench_.loop->Spawn(close(), [this] { bench_.loop->Stop(); });
    bench_.loop->Run();
    EXPECT_TRUE(Validate(*out).ok());
    return std::move(*out);
  }
  std::string Text(const Trajectory& t, size_t begin, size_t end) {
    return bench_.tokenizer
        ->Decode(std::vector<int32_t>(t.tokens.begin() + static_cast<int64_t>(begin),
                                      t.tokens.begin() + static_cast<int64_t>(end)),
                 false)
        .value();
  }
  std::string Text(const Trajectory& t) { return Text(t, 0, t.tokens.size()); }
  // The sampled tokens alone, a '|' after each stretch.
  std::string Sampled(const Trajectory& t) {
    std::string out;
    for (const Turn& turn : t.turns) {
      if (turn.kind != TurnKind::kAction) continue;
      out += Text(t, static_cast<size_t>(turn.begin), static_cast<size_t>(turn.end)) + "|";
      for (int32_t i = turn.begin; i < turn.end; ++i) {
        EXPECT_EQ(t.loss_mask[static_cast<size_t>(i)], 1);
      }
    }
    return out;
  }

  Bench bench_;
  WorkerPool workers_{2};
  std::unique_ptr<RecordingProxy> proxy_;
  EpisodeAccess access_;
  Status reason_;
};

}  // namespace forebay::rollout::serving
