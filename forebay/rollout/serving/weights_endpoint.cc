// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/weights_endpoint.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/json_depth.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/field_reader.h"
#include "forebay/rollout/serving/publisher_gate.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/snapshot_receiver.h"

namespace forebay::rollout {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kRoot = "/weights/v1";
constexpr size_t kNameBytesMax = 4096;  // a path
constexpr int64_t kPublisherMembersMax = 16;
// Of a version, or a time in microseconds: after a larger one nothing could come.
constexpr int64_t kOrdinalMax = int64_t{1} << 53;

std::string NewInstance() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

int HttpCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kDataLoss:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kFailedPrecondition:
      return 409;
    case StatusCode::kUnavailable:
      return 410;
    default:
      return 503;
  }
}

std::optional<int64_t> Number(std::string_view text) {
  int64_t out = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < 0) return std::nullopt;
  return out;
}

// "/weights/v1/syncs/3/chunks/5" -> 3, "chunks", 5.
struct SyncPath {
  uint64_t sync = 0;
  std::string_view what;
  int64_t chunk = -1;
};
std::optional<SyncPath> ParseSyncPath(std::string_view path) {
  constexpr std::string_view kSyncs = "/weights/v1/syncs/";
  if (!path.starts_with(kSyncs)) return std::nullopt;
  path.remove_prefix(kSyncs.size());
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> sync = Number(path.substr(0, slash));
  if (!sync) return std::nullopt;
  SyncPath out{.sync = static_cast<uint64_t>(*sync), .what = path.substr(slash + 1)};
  const size_t next = out.what.find('/');
  if (next == std::string_view::npos) return out;
  const std::optional<int64_t> chunk = Number(out.what.substr(next + 1));
  if (!chunk) return std::nullopt;
  out.what = out.what.substr(0, next);
  out.chunk = *chunk;
  return out;
}

class Endpoint final : public WeightsEndpoint {
 public:
  Endpoint(Loop& loop, WorkerPool* workers, Engine& engine, const weights::Snapshot& current,
           const WeightsEndpointOptions& options)
      : loop_(loop),
        workers_(workers),
        engine_(engine),
        receiver_(current, options.chunk_bytes),
        gate_(NewInstance(), options.silence_max) {}

  bool Owns(const HttpRequest& request) const override {
    return request.path() == kRoot || request.path().starts_with("/weights/v1/");
  }

  Task<int> Handle(HttpExchange& exchange) override {
    Task<Result<Json>> answering = Answer(exchange.request());
    const Result<Json> answer = co_await std::move(answering);
    HttpResponse response{.headers = {{"Content-Type", "application/json"}}};
    if (answer.ok()) {
      response.body = answer->dump();
    } else {
      response.status = HttpCode(answer.status());
      response.body =
          serving::ErrorJson(serving::HttpError(response.status, answer.status().message()));
    }
    const int code = response.status;
    Task<Status> responding = exchange.Respond(std::move(response));
    const Status ignored = co_await std::move(responding);
    static_cast<void>(ignored);  // a publisher that has gone asks again
    co_return code;
  }

  Result<std::shared_ptr<void>> Admit(const HttpRequest& request) override {
    const std::optional<std::string_view> ticket = request.headers.Get("forebay-publisher");
    if (!ticket) return std::shared_ptr<void>();
    FB_RETURN_IF_ERROR(gate_.Check(*ticket, loop_.Now()));
    const uint64_t epoch = gate_.epoch();
    ++running_[epoch];
    return std::shared_ptr<void>(&running_, [this, epoch](void*) {
      if (--running_[epoch] == 0) running_.erase(epoch);
    });
  }

 private:
  Task<Result<Json>> Answer(const HttpRequest& request) {
    const std::string_view path = request.path();
    if (path == "/weights/v1/publishers" && request.method == "POST") co_return Enter(request);
    const Status known =
        gate_.Check(request.headers.Get("forebay-publisher").value_or(""), loop_.Now());
    if (!known.ok()) co_return known;
    if (path == kRoot && request.method == "GET") co_return State();
    if (path == "/weights/v1/syncs" && request.method == "POST") {
      Task<Result<Json>> beginning = Begin(request);
      co_return co_await std::move(beginning);
    }
    const std::optional<SyncPath> sync = ParseSyncPath(path);
    if (sync && sync->what == "chunks" && sync->chunk >= 0 && request.method == "PUT") {
      const auto take = [&] { return receiver_.Take(sync->sync, sync->chunk, request.body); };
      Task<Status> taking = Offload(&loop_, workers_, take);
      const Status taken = co_await std::move(taking);
      if (!taken.ok()) co_return taken;
      co_return Json::object();
    }
    if (sync && sync->what == "commit" && sync->chunk < 0 && request.method == "POST") {
      Task<Result<Json>> committing = Commit(sync->sync);
      co_return co_await std::move(committing);
    }
    co_return NotFound(fmt::format("{} {} is not how weights are given to this server",
                                   request.method, path.substr(0, 100)));
  }

  Json State() const {
    return {{"policy_version", engine_.policy_version()},
            {"weights_digest", engine_.weights_digest()}};
  }

  Result<Json> Enter(const HttpRequest& request) {
    const bool bounded = !TooDeep(request.body) && !TooCrowded(request.body, kPublisherMembersMax);
    const Json body =
        bounded ? Json::parse(request.body, nullptr, /*allow_exceptions=*/false) : Json();
    if (!body.is_object()) return InvalidArgument("the body is no JSON object of a publisher");
    serving::FieldReader fields(body);
    const auto name = fields.String("name", kNameBytesMax);
    const auto started = fields.Int("started_us", 0, kOrdinalMax);
    if (fields.error()) return InvalidArgument(fields.error()->message);
    if (!name || name->empty() || !started) {
      return InvalidArgument("a publisher has a name and started_us");
    }
    // What it is told of the weights must stay true until it gives others.
    if (publishing_) return ResourceExhausted("weights are being taken; ask again");
    const uint64_t before = gate_.epoch();
    FB_ASSIGN_OR_RETURN(const std::string ticket,
                        gate_.Enter({.name = *name, .started_us = *started}, loop_.Now()));
    if (gate_.epoch() != before) version_ = -1;  // a run may go back to an older checkpoint
    Json out = State();
    out["ticket"] = ticket;
    return out;
  }

  Status CheckVersion(int64_t version) const {
    if (version > kOrdinalMax) {
      return InvalidArgument(fmt::format("version {} is no version that a run comes to: at most {}",
                                         version, kOrdinalMax));
    }
    if (version > version_) return OkStatus();
    return InvalidArgument(
        fmt::format("version {} comes after version {}: versions only grow", version, version_));
  }

  Task<Result<Json>> Begin(const HttpRequest& request) {
    Result<weights::Manifest> manifest = Status(StatusCode::kInternal, "not read");
    const auto begin = [&]() -> Result<weights::SnapshotOffer> {
      manifest = weights::ParseManifest(request.body);
      if (!manifest.ok()) return manifest.status();
      return receiver_.Begin(*manifest);
    };
    Task<Result<weights::SnapshotOffer>> beginning = Offload(&loop_, workers_, begin);
    const Result<weights::SnapshotOffer> offer = co_await std::move(beginning);
    if (!offer.ok()) co_return offer.status();
    const Status newer = CheckVersion(manifest->policy_version);
    if (!newer.ok()) co_return newer;
    co_return Json{{"sync", offer->sync},
                   {"missing", offer->missing},
                   {"bytes", offer->bytes},
                   {"chunk_bytes", offer->chunk_bytes},
                   {"chunks", offer->chunks}};
  }

  Task<Result<Json>> Commit(uint64_t sync) {
    // Of a publisher before: its answers must not hold tokens of ours.
    if (!running_.empty() && running_.begin()->first < gate_.epoch()) {
      co_return ResourceExhausted("requests of the publisher before still run; ask again");
    }
    if (publishing_) co_return ResourceExhausted("other weights are being taken; ask again");
    const Result<weights::ReceivedSnapshot> received = receiver_.Complete(sync);
    if (received.status().code() == StatusCode::kFailedPrecondition) {
      co_return InvalidArgument(received.status().message());
    }
    if (!received.ok()) co_return received.status();
    const int64_t version = received->manifest.policy_version;
    const Status newer = CheckVersion(version);
    if (!newer.ok()) co_return newer;
    const uint64_t epoch = gate_.epoch();
    publishing_ = true;
    const Completion<Status> done(loop_);
    engine_.Publish(received->snapshot, [done](Status status) { done.Set(std::move(status)); });
    auto waiting = done.Wait();
    const Status taken = co_await waiting;
    publishing_ = false;
    if (!taken.ok()) {
      co_return taken.code() == StatusCode::kUnavailable ? ResourceExhausted(taken.message())
                                                         : taken;
    }
    if (epoch == gate_.epoch()) version_ = version;
    Json state = State();
    const auto adopt = [&] {
      receiver_.Adopt(*received);
      return true;
    };
    Task<bool> adopting = Offload(&loop_, workers_, adopt);
    co_await std::move(adopting);
    co_return state;
  }

  Loop& loop_;
  WorkerPool* const workers_;
  Engine& engine_;
  weights::SnapshotReceiver receiver_;
  serving::PublisherGate gate_;
  std::map<uint64_t, int64_t> running_;  // requests admitted, by epoch
  int64_t version_ = -1;                 // the newest that the publisher has given
  bool publishing_ = false;
};

}  // namespace

std::unique_ptr<WeightsEndpoint> WeightsEndpoint::Create(Loop& loop, WorkerPool* workers,
                                                         Engine& engine,
                                                         const weights::Snapshot& current,
                                                         const WeightsEndpointOptions& options) {
  return std::make_unique<Endpoint>(loop, workers, engine, current, options);
}

}  // namespace forebay::rollout
