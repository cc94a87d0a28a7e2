// New weights over a socket, into a server that goes on generating: nothing is drained, nothing is
// mixed, and only what changed travels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/more_time_testing.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/rollout/external/remote_testing.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

void Until(const std::function<bool()>& condition) {
  const TimePoint deadline = Now() + std::chrono::seconds(240);
  while (!condition() && Now() < deadline) std::this_thread::sleep_for(milliseconds(2));
  ASSERT_TRUE(condition());
}

class PublishTest : public ::testing::Test {
 protected:
  void Serve(bool takes_weights = true) {
    server_.reset();
    server_.emplace(tiny_, text_, "unix:" + path_, takes_weights);
  }
  HttpEngineOptions Options(const std::string& run = "run") const {
    return {.protocol = HttpEngineProtocol::kForebay,
            .servers = {"unix:" + path_ + ":"},
            .model = "policy",
            .vocab_size = weights::kTinyVocabSize,
            .context = kContext,
            .reload = true,
            .publisher = run,
            .health_period = milliseconds(20)};
  }
  // The checkpoint with the tensors whose name contains `part` multiplied by `factor`.
  std::shared_ptr<const weights::Snapshot> Scaled(int64_t version, float factor,
                                                  const std::string& part = "") const {
    auto out = std::make_shared<weights::Snapshot>();
    out->policy_version = version;
    out->tensors = tiny_.checkpoint;
    for (auto& [name, tensor] : out->tensors) {
      if (name.find(part) == std::string::npos) continue;
      std::span<std::byte> bytes;
      weights::HostTensor scaled = weights::HostTensor::Allocate(tensor.shape(), &bytes);
      auto* to = reinterpret_cast<float*>(bytes.data());
      for (const float x : tensor.as<float>()) *to++ = x * factor;
      tensor = scaled;
    }
    return out;
  }
  static int64_t Bytes(const weights::TensorMap& tensors, const std::string& part = "") {
    int64_t out = 0;
    for (const auto& [name, tensor] : tensors) {
      if (name.find(part) != std::string::npos) out += static_cast<int64_t>(tensor.bytes().size());
    }
    return out;
  }
  // Norms of a new model are all ones: what is equal travels once.
  static int64_t DistinctBytes(const weights::Snapshot& snapshot) {
    std::map<weights::ContentId, int64_t> contents;
    for (const weights::ManifestTensor& tensor : weights::MakeManifest(snapshot).tensors) {
      contents[tensor.content] = tensor.shape.bytes();
    }
    int64_t out = 0;
    for (const auto& [content, bytes] : contents) out += bytes;
    return out;
  }

  const std::string path_ = "/tmp/forebay_publish_test_" + std::to_string(getpid());
  const TinyModel tiny_ = MakeTinyModel(kContext);
  const TinyText text_ = MakeTinyText();
  std::optional<RemoteServer> server_;
};

TEST_F(PublishTest, T7_TrajectoriesAreThoseOfTheEngineItselfBeforeAndAfterNewWeights) {
  Serve();
  const auto remote = MakeHttpEngine(Options(), *Scaled(0, 1));
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  Local local(server_->engine());
  std::string before;
  for (int64_t version = 0; version <= 2; ++version) {
    if (version > 0) {
      const float factor = 1 + 0.3F * static_cast<float>(version);
      const auto snapshot = Scaled(version, factor);
      ASSERT_TRUE(PublishAndWait(**remote, snapshot).ok());
      EXPECT_EQ((*remote)->policy_version(), version);
      EXPECT_EQ(server_->engine().weights_digest(), weights::Digest(snapshot->tensors));
      EXPECT_EQ((*remote)->weights_digest(), server_->engine().weights_digest());
    }
    for (const double temperature : {0.0, 1.0, 0.7}) {
      const Trajectory here = Play(local, text_, temperature, 5);
      const Trajectory there = Play(**remote, text_, temperature, 5);
      EXPECT_EQ(Encode(here), Encode(there)) << "version " << version << " at " << temperature;
      EXPECT_TRUE(Validate(there).ok());
      if (temperature == 1) EXPECT_NE(std::exchange(before, Encode(there)), Encode(there));
    }
  }
}

TEST_F(PublishTest, NothingIsDrainedAndEveryTokenHasItsVersion) {
  Serve();
  const auto remote = MakeHttpEngine(Options(), *Scaled(0, 1));
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  Mutex mutex;
  std::vector<int64_t> told;  // of one request at a time
  int64_t mixed = 0, version = 0;
  // A publish falls into the middle of some answer sooner or later.
  const TimePoint deadline = Now() + std::chrono::seconds(240);
  while (mixed == 0 && Now() < deadline) {
    told.clear();
    auto answer = Ask(**remote, {.prompt = {72, 105},
                                 .new_tokens_max = 120,
                                 .seed = 3,
                                 .on_token = [&](const TokenEvent& event) {
                                   const MutexLock lock(mutex);
                                   told.push_back(event.policy_version);
                                 }});
    std::this_thread::sleep_for(milliseconds(version % 10));
    ++version;
    ASSERT_TRUE(PublishAndWait(**remote, Scaled(version, 1.0F + 0.01F * version)).ok());
    const auto result = Get(std::move(answer));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->tokens.size(), 120U);  // not cut
    std::vector<int64_t> versions;
    for (const VersionRun& run : result->versions) {
      versions.insert(versions.end(), static_cast<size_t>(run.tokens), run.policy_version);
    }
    const MutexLock lock(mutex);
    EXPECT_EQ(versions, told);
    if (result->versions.size() > 1) {
      ++mixed;
      EXPECT_EQ(result->versions.back().policy_version, version);
      EXPECT_EQ(result->versions.front().policy_version, version - 1);
    }
  }
  EXPECT_GT(mixed, 0) << version << " publishes";
}

TEST_F(PublishTest, OnlyWhatChangedIsSent) {
  Serve();
  const auto remote = MakeHttpEngine(Options(), *Scaled(0, 1));
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  EXPECT_EQ((*remote)->stats().published_bytes, 0);  // it had them
  ASSERT_TRUE(PublishAndWait(**remote, Scaled(1, 2, "q_proj")).ok());
  EngineStats stats = (*remote)->stats();
  EXPECT_EQ(stats.published_bytes, Bytes(tiny_.checkpoint));
  EXPECT_EQ(stats.published_bytes_sent, Bytes(tiny_.checkpoint, "q_proj"));
  EXPECT_GT(stats.published_bytes_sent, 0);
  ASSERT_TRUE(PublishAndWait(**remote, Scaled(2, 3)).ok());
  stats = (*remote)->stats();
  EXPECT_EQ(stats.published_bytes, 2 * Bytes(tiny_.checkpoint));
  EXPECT_EQ(stats.published_bytes_sent,
            DistinctBytes(*Scaled(2, 3)) + Bytes(tiny_.checkpoint, "q_proj"));
}

TEST_F(PublishTest, W1_WeightsThatAreNotAllOfTheModelsChangeNothing) {
  Serve();
  const auto remote = MakeHttpEngine(Options(), *Scaled(0, 1));
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  auto lacks = std::make_shared<weights::Snapshot>(*Scaled(1, 2));
  const std::string name = lacks->tensors.begin()->first;
  lacks->tensors.erase(name);
  const Status refused = PublishAndWait(**remote, lacks);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("'" + name + "' is missing"));
  EXPECT_EQ(server_->engine().policy_version(), 0);
  EXPECT_EQ(server_->engine().weights_digest(), weights::Digest(tiny_.checkpoint));
}

TEST_F(PublishTest, W1_AServerOfAnotherModelIsRefusedWithTheNames) {
  Serve();
  weights::Snapshot other = *Scaled(0, 1);
  other.tensors.emplace("another.weight", other.tensors.begin()->second);
  const auto remote = MakeHttpEngine(Options(), other);
  EXPECT_EQ(remote.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(remote.status().message(), HasSubstr("'another.weight' is not of the model"));
}

TEST_F(PublishTest, AServerWithOtherWeightsGetsTheRunsBeforeItsFirstRequest) {
  Serve();
  const auto first = Scaled(7, 1.5F);  // a run that goes on from a checkpoint
  const auto remote = MakeHttpEngine(Options(), *first);
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  EXPECT_EQ(server_->engine().policy_version(), 7);
  EXPECT_EQ(server_->engine().weights_digest(), weights::Digest(first->tensors));
}

TEST_F(PublishTest, AServerThatWasStartedAgainGetsTheWeightsAgain) {
  Serve();
  const auto remote = MakeHttpEngine(Options(), *Scaled(0, 1));
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  ASSERT_TRUE(PublishAndWait(**remote, Scaled(1, 1.5F)).ok());
  Serve();  // with the weights that it began with
  EXPECT_EQ(server_->engine().policy_version(), 0);
  // No answer of the time between has weights of the run's version 1 unless they are the run's.
  Until([&] {
    const auto result = Generate(**remote, {.prompt = {72}, .new_tokens_max = 2, .seed = 1});
    if (result.ok()) EXPECT_EQ(result->versions.front().policy_version, 1);
    return result.ok();
  });
  EXPECT_EQ(server_->engine().weights_digest(), weights::Digest(Scaled(1, 1.5F)->tensors));
  ASSERT_TRUE(PublishAndWait(**remote, Scaled(2, 2)).ok());
}

TEST_F(PublishTest, L1_AServerThatFreezesInATransferIsLeftAndTakenBack) {
  EXPECT_TRUE(WithMoreTime(milliseconds(500), [&](Duration within) {
    Serve();
    std::atomic<bool> freezes = false, frozen = false;
    std::promise<void> thaw;
    const auto thawed = thaw.get_future().share();
    RemoteServer other(tiny_, text_, "unix:" + path_ + "_other", /*takes_weights=*/true,
                       [&, thawed](const HttpRequest& request) {
                         if (!freezes || request.method != "PUT") return;
                         frozen = true;
                         thawed.wait();  // may wait: it is what is tested
                       });
    Mutex mutex;
    std::string log;
    HttpEngineOptions options = Options();
    options.servers.push_back(other.url());
    options.health_deadline = within;
    options.log = [&](const std::string& sentence) {
      const MutexLock lock(mutex);
      log += sentence + "\n";
    };
    const auto remote = MakeHttpEngine(options, *Scaled(0, 1));
    EXPECT_TRUE(remote.ok()) << remote.status().ToString();
    if (!remote.ok()) return true;
    freezes = true;
    std::promise<Status> taken;
    (*remote)->Publish(Scaled(1, 1.5F), [&](Status s) { taken.set_value(std::move(s)); });
    Until([&] { return frozen.load(); });
    // Without a deadline: what the frozen server has ends because it is lost.
    std::vector<std::future<Result<GenerateResult>>> asked;
    for (int i = 0; i < 3; ++i) {
      asked.push_back(Ask(**remote, {.prompt = {72}, .new_tokens_max = 2}));
    }
    const Status published = taken.get_future().get();
    for (auto& each : asked) {
      const auto code = Get(std::move(each)).status().code();
      EXPECT_TRUE(code == StatusCode::kOk || code == StatusCode::kInternal);
    }
    const auto after = Generate(**remote, {.prompt = {72}, .new_tokens_max = 2});
    freezes = false;
    thaw.set_value();
    if (!published.ok() || !after.ok()) return false;  // the other one was slow, too
    EXPECT_EQ(after->versions.front().policy_version, 1);
    EXPECT_EQ((*remote)->policy_version(), 1);
    {
      const MutexLock lock(mutex);
      // Else it was too slow before it froze.
      if (log.find(other.url() + " cannot be used: " + other.url() +
                   " stopped answering while it was given weights") == std::string::npos) {
        return false;
      }
    }
    Until([&] { return other.engine().policy_version() == 1; });
    if (!PublishAndWait(**remote, Scaled(2, 2)).ok()) return false;
    Until([&] { return other.engine().policy_version() == 2; });
    EXPECT_EQ(other.engine().weights_digest(), weights::Digest(Scaled(2, 2)->tensors));
    return true;
  }));
}

TEST_F(PublishTest, OneServerUnderTwoNamesIsRefusedWithBoth) {
  Serve();
  HttpEngineOptions options = Options();
  options.servers.push_back("unix:/tmp/." + path_.substr(4) + ":");
  const auto remote = MakeHttpEngine(options, *Scaled(0, 2));
  EXPECT_EQ(remote.status().code(), StatusCode::kFailedPrecondition);
  for (const std::string& url : options.servers) {
    EXPECT_THAT(remote.status().message(), HasSubstr(url));
  }
  EXPECT_THAT(remote.status().message(), HasSubstr("the same server under two names"));
}

TEST_F(PublishTest, TwoRunsAreFencedAndAYoungerProcessOfARunTakesOver) {
  Serve();
  const auto first = MakeHttpEngine(Options("one"), *Scaled(0, 1));
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  HttpEngineOptions options = Options("two");
  EXPECT_TRUE(WithMoreTime(milliseconds(200), [&](Duration within) {
    options.start_deadline = within;
    const auto second = MakeHttpEngine(options, *Scaled(0, 3));
    EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
    return second.status().message().find("'one' gives weights to this server") !=
           std::string::npos;
  }));

  const auto again = MakeHttpEngine(Options("one"), *Scaled(4, 2));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(server_->engine().policy_version(), 4);
  // It hears it from what it sends, or when it asks to be the publisher again.
  const Status fenced = PublishAndWait(**first, Scaled(5, 5));
  EXPECT_THAT(fenced.code(), AnyOf(StatusCode::kFailedPrecondition, StatusCode::kUnavailable));
  EXPECT_THAT(fenced.message(), AnyOf(HasSubstr("409"), HasSubstr("a younger process of 'one'")));
  Until([&] {
    return Generate(**first, {.prompt = {72}}).status().code() == StatusCode::kUnavailable;
  });
  EXPECT_EQ(server_->engine().policy_version(), 4);
  EXPECT_EQ(server_->engine().weights_digest(), weights::Digest(Scaled(4, 2)->tensors));
  EXPECT_TRUE(Generate(**again, {.prompt = {72}, .new_tokens_max = 2}).ok());
}

TEST_F(PublishTest, AServerThatWasNotToldToTakeWeightsIsRefused) {
  Serve(/*takes_weights=*/false);
  const auto remote = MakeHttpEngine(Options(), *Scaled(0, 1));
  EXPECT_EQ(remote.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(remote.status().message(), HasSubstr("--take-weights"));
}

}  // namespace
}  // namespace forebay::rollout
