#include "bench/publish_server.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "bench/publish_streams.h"
#include "bench/recovery_process.h"
#include "bench/smollm2.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/weights_endpoint.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::bench {
namespace {

Status Serve() {
  FB_ASSIGN_OR_RETURN(weights::ModelFiles files, weights::LoadModelFiles(SmolLm2Path()));
  FB_ASSIGN_OR_RETURN(std::shared_ptr<const models::Model> language_model,
                      models::Model::Create(files.config_json));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<xla::Client> client, MakeClient());
  weights::Snapshot initial{.policy_version = 0, .tensors = std::move(files.tensors)};
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<rollout::Engine> engine,
                      rollout::MakeXlaEngine({.slots = kPublishSlots, .context = kPublishContext},
                                             *client, std::move(language_model), initial));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<tokenizer::Tokenizer> tokenizer,
                      tokenizer::Tokenizer::FromJson(files.tokenizer_json));
  const std::unique_ptr<Loop> loop = MakeLoop();
  WorkerPool workers(2);
  const auto endpoint = rollout::WeightsEndpoint::Create(*loop, &workers, *engine, initial);
  initial.tensors.clear();
  const rollout::ServedModel model{
      .name = "smollm2", .engine = engine.get(), .tokenizer = tokenizer.get()};
  FB_ASSIGN_OR_RETURN(
      const std::unique_ptr<rollout::OpenAiServer> server,
      rollout::OpenAiServer::Start(
          *loop, model,
          {.listen = {"tcp:127.0.0.1:0"}, .workers = &workers, .weights = endpoint.get()}));
  RoleReport(server->addresses().front() + "\n");
  const Streams streams(*engine, [](const Token& token) {
    RoleReport(fmt::format("{} {} {}\n",
                           std::chrono::nanoseconds(token.at.time_since_epoch()).count(),
                           token.policy_version, token.request));
  });
  loop->Run();  // until it is killed
  return OkStatus();
}

}  // namespace

int RunPublishServer() {
  const Status status = Serve();
  std::fprintf(stderr, "publish server: %s\n", status.message().c_str());
  return 1;
}

}  // namespace forebay::bench
