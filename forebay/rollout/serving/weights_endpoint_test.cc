// What the endpoint answers a publisher that is right, wrong, late, torn or hostile; and that the
// engine is given nothing but whole weights of the newest publisher.
#include "forebay/rollout/weights_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/base/http/http_testing.h"
#include "forebay/base/http_client.h"
#include "forebay/base/http_server.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

constexpr int64_t kChunk = 64;

weights::Snapshot Weights(int64_t version, int value, int64_t size = 40) {
  weights::Snapshot out{.policy_version = version};
  for (const std::string name : {"a", "b"}) {
    std::span<std::byte> bytes;
    weights::HostTensor tensor = weights::HostTensor::Allocate({xla::DType::kF32, {size}}, &bytes);
    std::ranges::fill(bytes, static_cast<std::byte>(2 * value + name.front()));
    out.tensors.emplace(name, tensor);
  }
  return out;
}

// Takes weights at once, or says what it was told to.
class TakingEngine final : public Engine {
 public:
  uint64_t Generate(GenerateRequest, std::function<void(Result<GenerateResult>)>) override {
    return 1;
  }
  void Cancel(uint64_t) override {}
  void Publish(std::shared_ptr<const weights::Snapshot> snapshot,
               std::function<void(Status)> taken) override {
    if (refusal.ok()) current = *snapshot;
    taken(refusal);
  }
  int64_t policy_version() const override { return current.policy_version; }
  std::string weights_digest() const override { return weights::Digest(current.tensors); }
  EngineStats stats() const override { return {}; }
  void Shutdown() override {}

  Status refusal;
  weights::Snapshot current = Weights(0, 0);
};

class WeightsEndpointTest : public ::testing::Test {
 protected:
  WeightsEndpointTest()
      : server_([this](HttpExchange& exchange) { return Handle(exchange); }),
        endpoint_(WeightsEndpoint::Create(server_.thread().loop(), nullptr, engine_,
                                          engine_.current,
                                          {.silence_max = silence_, .chunk_bytes = kChunk})) {}
  ~WeightsEndpointTest() override { server_.Stop(std::chrono::seconds(5)); }

  Task<void> Handle(HttpExchange& exchange) {
    Task<int> handling = endpoint_->Handle(exchange);
    co_await std::move(handling);
  }

  struct Answer {
    int status = 0;
    Json body;
    std::string message() const { return body.value("/error/message"_json_pointer, ""); }
  };
  Answer Send(const std::string& method, const std::string& target, const std::string& body = "",
              const std::string& ticket = "") {
    Answer out;
    client_thread_.Await([&]() -> Task<void> {
      const auto client = std::move(HttpClient::Create(client_thread_.loop()).value());
      HttpCall call{.request = {.method = method, .url = server_.url() + target, .body = body}};
      if (!ticket.empty()) call.request.headers.Add("Forebay-Publisher", ticket);
      Task<Result<HttpResponse>> sending = client->Send(std::move(call));
      const Result<HttpResponse> response = co_await std::move(sending);
      EXPECT_TRUE(response.ok()) << response.status().ToString();
      if (!response.ok()) co_return;
      out = {response->status, Json::parse(response->body, nullptr, false)};
    });
    return out;
  }
  Answer Enter(const std::string& name, int64_t started) {
    return Send("POST", "/weights/v1/publishers",
                Json({{"name", name}, {"started_us", started}}).dump());
  }
  std::string Ticket(const std::string& name, int64_t started = 1) {
    return Enter(name, started).body.value("ticket", "");
  }
  Answer Begin(const weights::Snapshot& snapshot, const std::string& ticket) {
    return Send("POST", "/weights/v1/syncs",
                weights::FormatManifest(weights::MakeManifest(snapshot)), ticket);
  }
  // The bytes of all tensors that were asked for.
  static std::string Missing(const weights::Snapshot& snapshot, const Json& offer) {
    std::string out;
    for (const size_t index : offer["missing"]) {
      const auto bytes =
          std::next(snapshot.tensors.begin(), static_cast<int64_t>(index))->second.bytes();
      out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return out;
  }
  static std::string Sync(const Json& offer) {
    return "/weights/v1/syncs/" + std::to_string(offer["sync"].get<int64_t>());
  }
  Answer SendChunk(const weights::Snapshot& snapshot, const Json& offer, int64_t chunk,
                   const std::string& ticket) {
    return Send("PUT", Sync(offer) + "/chunks/" + std::to_string(chunk),
                Missing(snapshot, offer).substr(static_cast<size_t>(chunk * kChunk), kChunk),
                ticket);
  }
  Answer Give(const weights::Snapshot& snapshot, const std::string& ticket) {
    const Answer begun = Begin(snapshot, ticket);
    if (begun.status != 200) return begun;
    for (int64_t i = 0; i < begun.body["chunks"].get<int64_t>(); ++i) {
      const Answer sent = SendChunk(snapshot, begun.body, i, ticket);
      if (sent.status != 200) return sent;
    }
    return Send("POST", Sync(begun.body) + "/commit", "{}", ticket);
  }

  const Duration silence_ = std::chrono::hours(1);
  TakingEngine engine_;
  LoopThread client_thread_;
  TestServer server_;
  std::unique_ptr<WeightsEndpoint> endpoint_;
};

TEST_F(WeightsEndpointTest, WeightsArriveAndOnlyWhatChangedIsAskedFor) {
  const Answer entered = Enter("run", 1);
  EXPECT_EQ(entered.body["policy_version"], 0);
  EXPECT_EQ(entered.body["weights_digest"], engine_.weights_digest());
  const std::string ticket = entered.body["ticket"];
  weights::Snapshot next = Weights(3, 1);
  next.tensors["a"] = engine_.current.tensors["a"];
  const Answer begun = Begin(next, ticket);
  EXPECT_EQ(begun.body["missing"], Json::array({1}));
  const Answer given = Give(next, ticket);
  EXPECT_EQ(given.status, 200) << given.message();
  EXPECT_EQ(given.body["policy_version"], 3);
  EXPECT_EQ(given.body["weights_digest"], weights::Digest(next.tensors));
  EXPECT_EQ(engine_.weights_digest(), weights::Digest(next.tensors));
  EXPECT_THAT(Begin(
                  [&] {
                    auto same = next;
                    same.policy_version = 4;
                    return same;
                  }(),
                  ticket)
                  .body["missing"],
              IsEmpty());
  EXPECT_EQ(Send("GET", "/weights/v1", "", ticket).body["policy_version"], 3);
}

TEST_F(WeightsEndpointTest, VersionsOfAPublisherOnlyGrow) {
  const std::string ticket = Ticket("run");
  ASSERT_EQ(Give(Weights(5, 1), ticket).status, 200);
  for (const int64_t version : {5, 4}) {
    const Answer refused = Give(Weights(version, 2), ticket);
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.message(), HasSubstr("versions only grow"));
  }
  // After it none could come.
  const Answer last = Give(Weights(INT64_MAX, 2), ticket);
  EXPECT_EQ(last.status, 400);
  EXPECT_THAT(last.message(), HasSubstr("no version that a run comes to"));
  EXPECT_EQ(Give(Weights(6, 1), ticket).status, 200);
  // A run that was killed goes on from an older checkpoint.
  EXPECT_EQ(Give(Weights(4, 2), Ticket("run", 2)).status, 200);
  EXPECT_EQ(engine_.policy_version(), 4);
}

TEST_F(WeightsEndpointTest, W1_NothingIsSwappedUntilAllIsThere) {
  const std::string ticket = Ticket("run");
  const std::string before = engine_.weights_digest();
  const weights::Snapshot next = Weights(1, 1);
  const Json offer = Begin(next, ticket).body;
  ASSERT_EQ(offer["chunks"], 5);
  for (const int64_t chunk : {0, 1, 2, 4}) {
    ASSERT_EQ(SendChunk(next, offer, chunk, ticket).status, 200);
  }
  const Answer torn = Send("POST", Sync(offer) + "/commit", "{}", ticket);
  EXPECT_EQ(torn.status, 400);
  EXPECT_THAT(torn.message(), HasSubstr("1 of 5 chunks"));
  EXPECT_EQ(engine_.weights_digest(), before);
  ASSERT_EQ(SendChunk(next, offer, 3, ticket).status, 200);
  EXPECT_EQ(Send("POST", Sync(offer) + "/commit", "{}", ticket).status, 200);
  EXPECT_EQ(engine_.weights_digest(), weights::Digest(next.tensors));
}

TEST_F(WeightsEndpointTest, W1_WhatIsNotTheModelOrNotItsManifestIsRefused) {
  const std::string ticket = Ticket("run");
  weights::Snapshot lacks = Weights(1, 1);
  lacks.tensors.erase("b");
  EXPECT_THAT(Begin(lacks, ticket).message(), HasSubstr("'b' is missing"));
  EXPECT_THAT(Begin(Weights(1, 1, 41), ticket).message(), HasSubstr("instead of f32[40]"));
  std::string text = weights::FormatManifest(weights::MakeManifest(Weights(1, 1)));
  text[text.find("\"policy_version\":1") + 17] = '2';
  const Answer changed = Send("POST", "/weights/v1/syncs", text, ticket);
  EXPECT_EQ(changed.status, 400);
  EXPECT_THAT(changed.message(), HasSubstr("root"));

  const Json offer = Begin(Weights(1, 1), ticket).body;
  Answer flipped;
  for (int64_t i = 0; i < 5; ++i) {
    std::string bytes =
        Missing(Weights(1, 1), offer).substr(static_cast<size_t>(i * kChunk), kChunk);
    bytes.back() ^= 1;
    flipped = Send("PUT", Sync(offer) + "/chunks/" + std::to_string(i), bytes, ticket);
    if (flipped.status != 200) break;
  }
  EXPECT_EQ(flipped.status, 400);
  EXPECT_THAT(flipped.message(), HasSubstr("another content"));
  EXPECT_EQ(engine_.policy_version(), 0);
}

TEST_F(WeightsEndpointTest, WeightsThatTheEngineRefusesLeaveTheOldOnes) {
  const std::string ticket = Ticket("run");
  engine_.refusal = InvalidArgument("they hold NaN");
  const Answer refused = Give(Weights(1, 1), ticket);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.message(), HasSubstr("NaN"));
  EXPECT_EQ(engine_.policy_version(), 0);
  engine_.refusal = OkStatus();
  EXPECT_EQ(Give(Weights(1, 1), ticket).status, 200);  // the version was not used up
}

TEST_F(WeightsEndpointTest, TwoPublishersAreFenced) {
  const std::string first = Ticket("one");
  const Answer held = Enter("two", 2);
  EXPECT_EQ(held.status, 503);
  EXPECT_THAT(held.message(), HasSubstr("'one' gives weights"));
  const Json offer = Begin(Weights(1, 1), first).body;
  const std::string second = Ticket("one", 2);
  EXPECT_EQ(SendChunk(Weights(1, 1), offer, 0, first).status, 409);
  EXPECT_EQ(Give(Weights(1, 1), first).status, 409);
  const Answer older = Enter("one", 1);
  EXPECT_EQ(older.status, 503);
  EXPECT_THAT(older.message(), HasSubstr("a younger process of 'one'"));
  EXPECT_EQ(Give(Weights(1, 1), second).status, 200);
}

TEST_F(WeightsEndpointTest, NoAnswerOfAPublisherHoldsTokensOfTheNextOnes) {
  const std::string first = Ticket("run");
  HttpRequest generate;
  generate.headers.Add("Forebay-Publisher", first);
  std::shared_ptr<void> running;
  server_.thread().Do([&] { running = endpoint_->Admit(generate).value(); });
  EXPECT_NE(running, nullptr);
  const std::string second = Ticket("run", 2);
  EXPECT_EQ(Give(Weights(1, 1), second).status, 503);
  EXPECT_EQ(engine_.policy_version(), 0);
  server_.thread().Do([&] {
    EXPECT_EQ(endpoint_->Admit(generate).status().code(), StatusCode::kFailedPrecondition);
    running.reset();
    EXPECT_EQ(endpoint_->Admit({}).value(), nullptr);  // whoever is no publisher may ask
  });
  EXPECT_EQ(Give(Weights(1, 1), second).status, 200);
}

TEST_F(WeightsEndpointTest, HostileCallsAreRefused) {
  EXPECT_EQ(Give(Weights(1, 1), "").status, 410);
  EXPECT_EQ(Give(Weights(1, 1), "another-1").status, 410);
  for (const std::string body :
       {"", "[]", "{}", "{\"name\": 1}", "{\"name\": \"x\"}", "{\"name\": \"\", \"started_us\": 1}",
        "{\"name\": \"x\", \"started_us\": -1}", "{\"name\": \"x\", \"started_us\": 1e99}",
        "{\"name\": \"x\", \"started_us\": 9223372036854775807}"}) {
    EXPECT_EQ(Send("POST", "/weights/v1/publishers", body).status, 400) << body;
  }
  const std::string ticket = Ticket("run");
  for (const std::string body : {"", "{}", "[]", "null", "\xFF\xFE"}) {
    EXPECT_EQ(Send("POST", "/weights/v1/syncs", body, ticket).status, 400) << body;
  }
  const Json offer = Begin(Weights(1, 1), ticket).body;
  const std::string sync = Sync(offer);
  for (const auto& [target, status] :
       std::vector<std::pair<std::string, int>>{{sync + "/chunks/5", 400},
                                                {sync + "/chunks/0", 400},  // no bytes
                                                {sync + "/chunks/-1", 404},
                                                {sync + "/chunks/99999999999999999999", 404},
                                                {sync + "/chunks/0x0", 404},
                                                {sync + "/chunks", 404},
                                                {sync + "/commit/1", 404},
                                                {"/weights/v1/syncs/77/chunks/0", 404},
                                                {"/weights/v1/syncs//chunks/0", 404},
                                                {"/weights/v1/other", 404}}) {
    EXPECT_EQ(Send("PUT", target, "", ticket).status, status) << target;
  }
  EXPECT_EQ(Send("POST", "/weights/v1/syncs/77/commit", "{}", ticket).status, 404);
  EXPECT_EQ(Send("DELETE", "/weights/v1", "", ticket).status, 404);
  EXPECT_EQ(engine_.policy_version(), 0);
}

}  // namespace
}  // namespace forebay::rollout
