// What the tests of serving share: an engine that says what it is told to, and asking a server.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout::serving {

using Json = nlohmann::ordered_json;

inline const std::string kChat = "/v1/chat/completions";

// On a loop: a token at each turn of it. Knows the tiny model's text: one token a byte.
class SayingEngine final : public Engine {
 public:
  SayingEngine(Loop& loop, const tokenizer::Tokenizer& tokenizer)
      : loop_(loop), tokenizer_(tokenizer) {}

  // What it answers (an end of turn is added) to which request.
  std::function<std::string(const GenerateRequest&)> say = [](const GenerateRequest&) {
    return "Hello.";
  };
  // If it is set: the tokens themselves.
  std::function<std::vector<int32_t>(const GenerateRequest&)> say_tokens;
  Status fails;  // every request's answer, after `fails_after` tokens
  int64_t fails_after = 0;
  bool hangs = false;               // until it is cancelled
  int64_t hangs_after = INT64_MAX;  // so many tokens
  int64_t version = 3;
  int64_t context = 4096;
  int64_t waiting = 0;  // what it says of its queue
  std::vector<GenerateRequest> requests;
  int64_t cancelled = 0;

  uint64_t Generate(GenerateRequest request,
                    std::function<void(Result<GenerateResult>)> done) override;
  void Cancel(uint64_t id) override;
  void Publish(std::shared_ptr<const weights::Snapshot>,
               std::function<void(Status)> taken) override {
    taken(OkStatus());
  }
  int64_t policy_version() const override { return version; }
  std::string weights_digest() const override { return "digest"; }
  int64_t context_max() const override { return context; }
  EngineStats stats() const override { return {.waiting = waiting}; }
  void Shutdown() override {}

 private:
  struct Running {
    GenerateRequest request;
    std::function<void(Result<GenerateResult>)> done;
    std::vector<int32_t> tokens;
    GenerateResult result;
    std::string text;
  };
  void Step(uint64_t id);
  void End(uint64_t id, Status status);

  Loop& loop_;
  const tokenizer::Tokenizer& tokenizer_;
  std::map<uint64_t, Running> running_;
  uint64_t next_ = 1;
};

// A loop, the tiny model's text, the engine above and a client.
struct Bench {
  Bench();
  ~Bench();

  ServedModel model();
  // The token of the next answers' Authorization header.
  std::string key;
  HttpResponse Send(const std::string& method, const std::string& target, const std::string& body);
  HttpResponse Post(const std::string& target, const Json& body) {
    return Send("POST", target, body.dump());
  }
  HttpResponse Get(const std::string& target) { return Send("GET", target, ""); }
  // The data of the events of a streamed answer.
  std::vector<std::string> Stream(const std::string& target, const Json& body);
  // Begins to stream, reads one event and goes away.
  void StreamAndLeave(const std::string& target, const Json& body);
  // Runs the loop until `condition` holds; a failure after 120 s.
  void Until(const std::function<bool()>& condition);

  std::unique_ptr<Loop> loop;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<tokenizer::ChatTemplate> chat;
  std::unique_ptr<SayingEngine> engine;
  std::unique_ptr<HttpClient> client;
  std::string base;  // "http://127.0.0.1:PORT"
};

inline Json Parsed(const HttpResponse& response) {
  return Json::parse(response.body, nullptr, false);
}

}  // namespace forebay::rollout::serving
