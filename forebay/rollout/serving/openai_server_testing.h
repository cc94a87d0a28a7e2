// The fixture of the server's tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/serving_testing.h"

namespace forebay::rollout::serving {

class OpenAiServerTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve({}); }
  void TearDown() override { End(); }
  void Serve(OpenAiServerOptions options) {
    End();
    options.listen = {"tcp:127.0.0.1:0"};
    auto made = OpenAiServer::Start(*bench_.loop, bench_.model(), options);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    server_ = std::move(*made);
    bench_.base = server_->addresses().front();
  }
  void End() {
    if (!server_) return;
    bench_.loop->Spawn(server_->Stop(Now()), [this] { bench_.loop->Stop(); });
    bench_.loop->Run();
    server_.reset();
  }
  static Json Ask(Json more = Json::object()) {
    Json body = {{"model", "tiny"}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    body.update(more);
    return body;
  }

  Bench bench_;
  std::unique_ptr<OpenAiServer> server_;
};

}  // namespace forebay::rollout::serving
