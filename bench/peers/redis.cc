#include <memory>

#include "bench/buffer_engine.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#ifdef FOREBAY_BENCH_REDIS
#include <hiredis/hiredis.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bench/peers/server_process.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#endif

namespace forebay::bench {

#ifdef FOREBAY_BENCH_REDIS
namespace {

struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Context = std::unique_ptr<redisContext, FreeContext>;
using Reply = std::unique_ptr<redisReply, FreeReply>;

// Of a command that was sent or answered on `context`.
Result<Reply> Checked(redisContext* context, void* reply) {
  Reply owned(static_cast<redisReply*>(reply));
  if (owned == nullptr) return Unavailable(std::string("Redis: ") + context->errstr);
  if (owned->type == REDIS_REPLY_ERROR) return Internal(std::string("Redis: ") + owned->str);
  return owned;
}

class RedisEngine final : public Engine {
 public:
  RedisEngine(std::string folder, bool always)
      : folder_(std::move(folder)),
        // Not below the data folder: the path of a Unix socket has at most 107 characters.
        socket_((std::filesystem::temp_directory_path() /
                 ("forebay-bench-" + std::to_string(getpid()) + (always ? "a" : "e")))
                    .string()),
        always_(always) {}

  ~RedisEngine() override {
    server_.reset();
    std::error_code ignored;
    std::filesystem::remove(socket_, ignored);
  }

  Status Start() {
    FB_RETURN_IF_ERROR(MakeFolders(folder_));
    FB_ASSIGN_OR_RETURN(
        server_, ServerProcess::Start(
                     {.program = "redis-server",
                      .args = {"--port", "0", "--unixsocket", socket_, "--dir", folder_,
                               "--appendonly", "yes", "--appendfsync",
                               always_ ? "always" : "everysec", "--save", "", "--daemonize", "no"},
                      .log = folder_ + "/log",
                      .ready = [this] { return Connect().ok(); }}));
    return OkStatus();
  }

  Status Open(int writers, int /*readers*/) override {
    for (int i = 0; i < writers; ++i) {
      FB_ASSIGN_OR_RETURN(Context context, Connect());
      writers_.push_back(std::move(context));
    }
    FB_ASSIGN_OR_RETURN(reader_, Connect());
    FB_RETURN_IF_ERROR(Do("FLUSHALL"));
    return Do("XGROUP CREATE q readers $ MKSTREAM");
  }

  Status Insert(const Record& record) override {
    redisContext* const context = writers_[static_cast<size_t>(record.writer)].get();
    return Checked(context,
                   redisCommand(context, "XADD q * r %b", record.bytes.data(), record.bytes.size()))
        .status();
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    std::vector<std::string> ids;
    const TimePoint deadline = Now() + std::chrono::milliseconds(kEngineWaitMsMax);
    while (ids.size() < kBatchRecords) {
      if (Now() > deadline) return DeadlineExceeded("Redis lacks acknowledged records");
      FB_ASSIGN_OR_RETURN(
          const Reply reply,
          Checked(reader_.get(),
                  redisCommand(reader_.get(), "XREADGROUP GROUP readers one COUNT %d STREAMS q >",
                               static_cast<int>(kBatchRecords - ids.size()))));
      if (reply->type != REDIS_REPLY_ARRAY) continue;
      const redisReply* const entries = reply->element[0]->element[1];
      for (size_t i = 0; i < entries->elements; ++i) {
        const redisReply* const entry = entries->element[i];
        const redisReply* const value = entry->element[1]->element[1];
        ids.emplace_back(entry->element[0]->str, entry->element[0]->len);
        if (!sink.Add(value->str, value->len)) return DataLoss("a record grew");
      }
    }
    FB_RETURN_IF_ERROR(Send({"XACK", "q", "readers"}, ids));
    FB_RETURN_IF_ERROR(Send({"XDEL", "q"}, ids));
    for (int i = 0; i < 2; ++i) {
      void* reply = nullptr;
      redisGetReply(reader_.get(), &reply);
      FB_RETURN_IF_ERROR(Checked(reader_.get(), reply).status());
    }
    return OkStatus();
  }

  Status Close() override {
    const Status flushed = Do("FLUSHALL");
    writers_.clear();
    reader_.reset();
    return flushed;
  }

  std::string Description() const override {
    return std::string("Redis, a stream with a consumer group over a Unix socket, appendfsync ") +
           (always_ ? "always" : "everysec");
  }

 private:
  Result<Context> Connect() const {
    Context context(redisConnectUnix(socket_.c_str()));
    if (context == nullptr || context->err != 0) return Unavailable("cannot connect to Redis");
    redisSetTimeout(context.get(), timeval{.tv_sec = kEngineWaitMsMax / 1000, .tv_usec = 0});
    FB_RETURN_IF_ERROR(Checked(context.get(), redisCommand(context.get(), "PING")).status());
    return context;
  }

  Status Do(const char* command) const {
    return Checked(reader_.get(), redisCommand(reader_.get(), command)).status();
  }

  Status Send(std::vector<const char*> words, const std::vector<std::string>& ids) const {
    for (const std::string& id : ids) words.push_back(id.c_str());
    const int code = redisAppendCommandArgv(reader_.get(), static_cast<int>(words.size()),
                                            words.data(), nullptr);
    return code == REDIS_OK ? OkStatus() : Unavailable("Redis does not take a command");
  }

  const std::string folder_, socket_;
  const bool always_;
  std::unique_ptr<ServerProcess> server_;
  std::vector<Context> writers_;
  Context reader_;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeRedis(const PeerOptions& options, bool always) {
  auto engine = std::make_unique<RedisEngine>(
      options.folder + (always ? "/redis_always" : "/redis_everysec"), always);
  const Status started = engine->Start();
  if (started.code() == StatusCode::kNotFound) return PeerMissing("redis-server");
  FB_RETURN_IF_ERROR(started);
  return std::unique_ptr<Engine>(std::move(engine));
}
#else
Result<std::unique_ptr<Engine>> MakeRedis(const PeerOptions& /*options*/, bool /*always*/) {
  return PeerMissing("the Redis client (libhiredis-dev)");
}
#endif

}  // namespace forebay::bench
