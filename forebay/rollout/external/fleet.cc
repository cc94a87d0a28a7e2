// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/external/fleet.h"

#include <fmt/core.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/publisher.h"
#include "forebay/rollout/external/server.h"
#include "forebay/rollout/external/start_task.h"
#include "forebay/rollout/external/wire.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout::external {
namespace {

// Answers in a row that were 500 or garbage, after which a server is asked who it is before it gets
// more.
constexpr int64_t kFailuresToAsk = 3;

int64_t Micros(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

Fleet::Fleet(Loop& loop, HttpClient& client, WorkerPool& workers, const HttpEngineOptions& options,
             const weights::Snapshot& initial, Folders folders)
    : loop_(loop),
      workers_(workers),
      options_(options),
      gives_(options.reload && options.protocol == HttpEngineProtocol::kForebay),
      gives_adapters_(!folders.base.empty()),
      base_folder_(std::move(folders.base)),
      wire_(MakeWire(options)),
      first_version_(initial.policy_version),
      started_us_(WallMicros()),
      policy_version_(initial.policy_version) {
  for (const auto& [name, tensor] : initial.tensors) names_.emplace(name, tensor.shape());
  target_ = {.version = initial.policy_version,
             .folder = std::move(folders.merged),
             .adapter_folder = std::move(folders.adapter)};
  if (gives_adapters_) target_.snapshot = std::make_shared<weights::Snapshot>(initial);
  if (gives_) target_.offering = MakeOffering(std::make_shared<weights::Snapshot>(initial));
  target_.digest = gives_ ? target_.offering->digest : weights::Digest(initial.tensors);
  const Publisher::Identity identity{.name = options.publisher, .started_us = started_us_};
  {
    const MutexLock lock(mutex_);
    digest_ = target_.digest;
    stats_.slots = static_cast<int64_t>(options.servers.size()) * options.requests_per_server_max;
  }
  for (const std::string& url : options.servers) {
    auto member = std::make_unique<Member>();
    member->server = std::make_unique<Server>(client, *wire_, options_, url);
    if (gives_) {
      member->publisher = std::make_unique<Publisher>(loop, *member->server, identity);
    }
    members_.push_back(std::move(member));
  }
}

void Fleet::Start() {
  for (const std::unique_ptr<Member>& member : members_) {
    Log(fmt::format("waiting for {} (at most {:.0f} s)", member->server->url(),
                    Seconds(options_.start_deadline)));
    member->task = Supervise(member.get());
    StartTask(member->task);
  }
}

void Fleet::Stop() {
  if (std::exchange(stopped_, true)) return;
  const Status ended = HasShutDown();
  FailWaiting(ended);
  while (!running_.empty()) {
    Done done = std::move(running_.begin()->second.done);
    running_.erase(running_.begin());  // closes its connection
    done(ended);
  }
  for (const std::unique_ptr<Member>& member : members_) {
    member->active = 0;
    if (member->wake_timer != 0) loop_.Cancel(member->wake_timer);
    member->task = {};
  }
  if (next_) std::exchange(next_, std::nullopt)->taken(ended);
  if (auto taken = std::exchange(target_.taken, nullptr)) taken(ended);
}

std::string Fleet::digest() const {
  const MutexLock lock(mutex_);
  return digest_;
}

EngineStats Fleet::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

// ---- requests

void Fleet::Generate(uint64_t id, GenerateRequest request, Done done) {
  if (stopped_) return done(HasShutDown());
  if (static_cast<int64_t>(waiting_.size()) >= options_.waiting_max) {
    return done(ResourceExhausted(
        fmt::format("{} requests wait for the servers already", options_.waiting_max)));
  }
  const TimePoint now = loop_.Now();
  if (request.deadline <= now) {
    return done(DeadlineExceeded("the request's deadline had passed when it came"));
  }
  Waiting waiting{.id = id, .request = std::move(request), .done = std::move(done), .since = now};
  if (waiting.request.deadline != TimePoint::max()) {
    waiting.timer = loop_.RunAt(waiting.request.deadline, [this, id] {
      const auto at = priority_of_.find(id);
      if (at == priority_of_.end()) return;
      auto node = waiting_.extract({at->second, id});
      priority_of_.erase(at);
      node.mapped().done(
          DeadlineExceeded("the request's deadline passed while it waited for a server"));
      Dispatch();  // counts what waits
    });
  }
  const int64_t priority = waiting.request.priority;
  priority_of_[id] = priority;
  waiting_.emplace(std::pair(priority, id), std::move(waiting));
  {
    const MutexLock lock(mutex_);
    ++stats_.requests;
  }
  Dispatch();
}

void Fleet::Dispatch() {
  while (!waiting_.empty() && !stopped_) {
    Member* best = nullptr;
    bool hope = false;
    for (const std::unique_ptr<Member>& member : members_) {
      hope |= member->usable;
      if (!member->ready || member->draining ||
          member->active >= options_.requests_per_server_max) {
        continue;
      }
      if (best == nullptr || member->active < best->active) best = member.get();
    }
    if (best == nullptr) {
      if (!hope) FailWaiting(NoServer());
      break;
    }
    auto node = waiting_.extract(waiting_.begin());
    priority_of_.erase(node.key().second);
    Begin(std::move(node.mapped()), *best);
  }
  const MutexLock lock(mutex_);
  stats_.waiting = static_cast<int64_t>(waiting_.size());
  stats_.active = 0;
  for (const std::unique_ptr<Member>& member : members_) stats_.active += member->active;
}

Status Fleet::NoServer() const {
  std::string why;
  for (const std::unique_ptr<Member>& member : members_) {
    why += fmt::format("{}{}", why.empty() ? "" : "; ", member->trouble.message());
  }
  return Unavailable(
      members_.size() == 1
          ? fmt::format("the rollout server cannot be used: {}", why)
          : fmt::format("none of the {} rollout servers can be used: {}", members_.size(), why));
}

void Fleet::FailWaiting(const Status& status) {
  auto waiting = std::exchange(waiting_, {});
  priority_of_.clear();
  for (auto& [key, each] : waiting) {
    if (each.timer != 0) loop_.Cancel(each.timer);
    each.done(status);
  }
}

void Fleet::Begin(Waiting waiting, Member& member) {
  if (waiting.timer != 0) loop_.Cancel(waiting.timer);
  if (!member.processed && !Plain(waiting.request) &&
      options_.protocol != HttpEngineProtocol::kLlamaCpp) {
    return waiting.done(InvalidArgument(fmt::format(
        "{} tells log-probabilities of the model, not of what it samples from with these "
        "parameters (temperature {}): {}, or sample at temperature 1 without filters, penalties "
        "and bias",
        member.server->url(), waiting.request.temperature, wire_->logprobs_remedy())));
  }
  const uint64_t id = waiting.id;
  Running& running = running_[id];
  running = {.request = std::move(waiting.request),
             .done = std::move(waiting.done),
             .since = waiting.since,
             .sent = loop_.Now(),
             .version = member.version,
             .member = &member};
  ++member.active;
  running.task = Serve(id, &member);
  StartTask(running.task);
}

Task<void> Fleet::Serve(uint64_t id, Member* member) {
  Task<Result<WireAnswer>> generating = member->server->Generate(running_.at(id).request);
  Result<WireAnswer> answer = co_await std::move(generating);
  Result<GenerateResult> result = Judge(running_.at(id), std::move(answer));
  // This coroutine is one of what End drops.
  loop_.Post([this, id, result = std::make_shared<Result<GenerateResult>>(std::move(result))] {
    End(id, std::move(*result));
  });
}

Status Fleet::CheckVersions(const Running& running, const WireAnswer& answer) const {
  const Member& member = *running.member;
  const auto other = [&](const std::string& got, const std::string& expected) {
    return FailedPrecondition(
        fmt::format("{} samples with weights of version '{}' instead of '{}': somebody else has "
                    "given it weights, or it was started again",
                    member.server->url(), got, expected));
  };
  if (gives_) {
    for (const VersionRun& run : answer.versions) {
      if (run.policy_version < running.version || run.policy_version > member.version_max) {
        return other(std::to_string(run.policy_version),
                     fmt::format("{} to {}", running.version, member.version_max));
      }
    }
    return OkStatus();
  }
  if (answer.version.empty()) return OkStatus();
  // An adapter is asked for by its name, and the label is of what is under it.
  if (!member.adapter.empty()) return OkStatus();
  const std::string expected =
      options_.reload ? std::to_string(running.version) : member.label.value_or("");
  return expected.empty() || answer.version == expected ? OkStatus()
                                                        : other(answer.version, expected);
}

// What the engine's caller is told of it, and what it says about the server.
Result<GenerateResult> Fleet::Judge(const Running& running, Result<WireAnswer> answer) {
  Member& member = *running.member;
  Result<GenerateResult> result =
      answer.status().ok()
          ? CheckAnswer(*answer, running.request, options_.vocab_size, running.version)
          : Result<GenerateResult>(answer.status());
  if (answer.ok() && result.ok()) {
    const Status versions = CheckVersions(running, *answer);
    if (!versions.ok()) result = versions;
  }
  switch (result.status().code()) {
    case StatusCode::kOk:
      member.failures = 0;
      return result;
    case StatusCode::kDataLoss:
    case StatusCode::kInternal:
      if (++member.failures >= kFailuresToAsk) Suspect(member, result.status());
      break;
    case StatusCode::kUnavailable:
    case StatusCode::kFailedPrecondition:
      member.version = options_.reload && answer.ok() ? -1 : member.version;
      Suspect(member, result.status());
      break;
    default:
      break;
  }
  return answer.ok() && !result.ok() && result.status().code() == StatusCode::kDataLoss
             ? result.status().WithContext(member.server->url())
             : std::move(result);
}

void Fleet::End(uint64_t id, Result<GenerateResult> result) {
  const auto at = running_.find(id);
  if (at == running_.end()) return;  // cancelled meanwhile
  auto node = running_.extract(at);
  Running& running = node.mapped();
  Member& member = *running.member;
  --member.active;
  if (member.draining) Wake(member);
  if (result.ok()) {
    result->queue_us = Micros(running.sent - running.since);
    result->decode_us = Micros(loop_.Now() - running.sent);
    {
      const MutexLock lock(mutex_);
      stats_.sampled_tokens += static_cast<int64_t>(result->tokens.size());
    }
    if (running.request.on_token) {
      size_t run = 0;
      for (int64_t i = 0, end = result->versions[0].tokens;
           i < static_cast<int64_t>(result->tokens.size()); ++i) {
        if (i == end) end += result->versions[++run].tokens;
        running.request.on_token(
            {.request = id,
             .index = i,
             .token = result->tokens[static_cast<size_t>(i)],
             .logprob = result->logprobs[static_cast<size_t>(i)],
             .policy_version = result->versions[run].policy_version,
             .top_logprobs = result->top_logprobs.empty()
                                 ? std::vector<TokenLogprob>()
                                 : result->top_logprobs[static_cast<size_t>(i)]});
      }
    }
  }
  // The engine itself is unavailable only when no server is left, which waiting requests are told.
  if (result.status().code() == StatusCode::kUnavailable) {
    result = Internal(result.status().message());
  }
  running.done(std::move(result));
  Dispatch();
}

void Fleet::Cancel(uint64_t id) {
  const Status cancelled = Cancelled("the request was cancelled");
  if (const auto at = priority_of_.find(id); at != priority_of_.end()) {
    auto node = waiting_.extract({at->second, id});
    priority_of_.erase(at);
    if (node.mapped().timer != 0) loop_.Cancel(node.mapped().timer);
    node.mapped().done(cancelled);
    return Dispatch();
  }
  if (running_.contains(id)) End(id, cancelled);
}

void Fleet::DropRequests(Member& member, const Status& status) {
  std::vector<uint64_t> ids;
  for (const auto& [id, running] : running_) {
    if (running.member == &member) ids.push_back(id);
  }
  for (const uint64_t id : ids) End(id, status);
}

}  // namespace forebay::rollout::external
