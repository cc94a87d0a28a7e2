#include <memory>

#include "bench/buffer_engine.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#ifdef FOREBAY_BENCH_NATS
#include <nats/nats.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/server_process.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#endif

namespace forebay::bench {

#ifdef FOREBAY_BENCH_NATS
namespace {

constexpr int kConnectionsMax = 8;  // more made it slower; the client library is thread-safe

Status FromNats(natsStatus status, const char* what) {
  if (status == NATS_OK) return OkStatus();
  return Internal(std::string("NATS, ") + what + ": " + natsStatus_GetText(status));
}

class NatsEngine final : public Engine {
 public:
  NatsEngine(std::string folder, std::string peers_folder, bool always)
      : folder_(std::move(folder)), peers_folder_(std::move(peers_folder)), always_(always) {}
  ~NatsEngine() override { Disconnect(); }

  Status Start() {
    FB_RETURN_IF_ERROR(MakeFolders(folder_));
    FB_ASSIGN_OR_RETURN(port_, FreePort());
    const std::string config = folder_ + "/config";
    FB_RETURN_IF_ERROR(WriteFileAtomic(config, "listen: \"127.0.0.1:" + std::to_string(port_) +
                                                   "\"\njetstream {\n  store_dir: \"" + folder_ +
                                                   "/store\"\n  max_mem: 1G\n  max_file: 16G\n" +
                                                   (always_ ? "  sync_interval: always\n" : "") +
                                                   "}\n"));
    // Debian's server is too old to know sync_interval.
    const std::string newer = peers_folder_ + "/nats/bin/nats-server";
    FB_ASSIGN_OR_RETURN(server_, ServerProcess::Start(
                                     {.program = FindProgram(newer).empty() ? "nats-server" : newer,
                                      .args = {"-c", config},
                                      .log = folder_ + "/log",
                                      .ready = [this] { return Accepts(port_); }}));
    return OkStatus();
  }

  Status Open(int writers, int /*readers*/) override {
    const int connections = std::min(writers, kConnectionsMax) + 1;  // the last is the reader's
    const std::string url = "nats://127.0.0.1:" + std::to_string(port_);
    for (int i = 0; i < connections; ++i) {
      natsConnection* connection = nullptr;
      FB_RETURN_IF_ERROR(FromNats(natsConnection_ConnectTo(&connection, url.c_str()), "connect"));
      connections_.push_back(connection);
      jsOptions options;
      jsOptions_Init(&options);
      options.Wait = kEngineWaitMsMax;
      jsCtx* stream = nullptr;
      FB_RETURN_IF_ERROR(FromNats(natsConnection_JetStream(&stream, connection, &options), "js"));
      streams_.push_back(stream);
    }
    js_DeleteStream(streams_[0], "Q", nullptr, nullptr);  // there is none at first
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    std::array<const char*, 1> subjects = {"q"};
    config.Name = "Q";
    config.Subjects = subjects.data();
    config.SubjectsLen = 1;
    config.Retention = js_WorkQueuePolicy;
    config.Storage = js_FileStorage;
    FB_RETURN_IF_ERROR(
        FromNats(js_AddStream(nullptr, streams_[0], &config, nullptr, nullptr), "add stream"));
    jsSubOptions options;
    jsSubOptions_Init(&options);
    options.Config.AckPolicy = js_AckExplicit;
    options.Config.MaxAckPending = 8192;
    return FromNats(
        js_PullSubscribe(&subscription_, streams_.back(), "q", "D", nullptr, &options, nullptr),
        "subscribe");
  }

  Status Insert(const Record& record) override {
    jsCtx* const stream = streams_[static_cast<size_t>(record.writer) % (streams_.size() - 1)];
    return FromNats(js_Publish(nullptr, stream, "q", record.bytes.data(),
                               static_cast<int>(record.bytes.size()), nullptr, nullptr),
                    "publish");
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    const TimePoint deadline = Now() + std::chrono::milliseconds(kEngineWaitMsMax);
    while (sink.records().size() < kBatchRecords) {
      natsMsgList list{};
      const auto left = static_cast<int>(kBatchRecords - sink.records().size());
      const natsStatus fetched = natsSubscription_Fetch(&list, subscription_, left, 1000, nullptr);
      if (fetched == NATS_TIMEOUT && Now() < deadline) continue;
      FB_RETURN_IF_ERROR(FromNats(fetched, "fetch"));
      bool fits = true;
      for (int i = 0; i < list.Count; ++i) {
        natsMsg* const message = list.Msgs[i];
        fits = sink.Add(natsMsg_GetData(message),
                        static_cast<size_t>(natsMsg_GetDataLength(message))) &&
               fits;
        natsMsg_Ack(message, nullptr);
      }
      natsMsgList_Destroy(&list);
      if (!fits) return DataLoss("a record is longer than any that was inserted");
    }
    return OkStatus();
  }

  Status Close() override {
    natsConnection_Flush(connections_.back());  // acknowledgements that are on their way
    natsSubscription_Destroy(std::exchange(subscription_, nullptr));
    const natsStatus deleted = js_DeleteStream(streams_[0], "Q", nullptr, nullptr);
    Disconnect();
    return FromNats(deleted, "delete stream");
  }

  std::string Description() const override {
    return std::string("NATS JetStream, file storage, work queue over loopback TCP, sync ") +
           (always_ ? "always" : "every 2 minutes (the default)");
  }

 private:
  void Disconnect() {
    natsSubscription_Destroy(std::exchange(subscription_, nullptr));
    for (jsCtx* stream : streams_) jsCtx_Destroy(stream);
    for (natsConnection* connection : connections_) natsConnection_Destroy(connection);
    streams_.clear();
    connections_.clear();
  }

  const std::string folder_, peers_folder_;
  const bool always_;
  int port_ = 0;
  std::unique_ptr<ServerProcess> server_;
  std::vector<natsConnection*> connections_;
  std::vector<jsCtx*> streams_;
  natsSubscription* subscription_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeNats(const PeerOptions& options, bool always) {
  auto engine = std::make_unique<NatsEngine>(
      options.folder + (always ? "/nats_always" : "/nats_default"), options.peers_folder, always);
  const Status started = engine->Start();
  if (started.code() == StatusCode::kNotFound) return PeerMissing("nats-server");
  FB_RETURN_IF_ERROR(started);
  return std::unique_ptr<Engine>(std::move(engine));
}
#else
Result<std::unique_ptr<Engine>> MakeNats(const PeerOptions& /*options*/, bool /*always*/) {
  return PeerMissing("the NATS client (libnats-dev)");
}
#endif

}  // namespace forebay::bench
