// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/external/publisher.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/external/json_reader.h"
#include "forebay/rollout/external/server.h"
#include "forebay/rollout/external/start_task.h"
#include "forebay/rollout/external/wire.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout::external {
namespace {

// Chunks on their way at once: one is being written while the server copies another.
constexpr int kLanes = 2;
// A server that wants larger ones than any of ours would make us hold that much.
constexpr int64_t kChunkBytesMax = int64_t{64} << 20;

constexpr const char* kRemedy = "start it with `forebay serve --take-weights`";

int64_t Integer(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX}
             ? value.get<int64_t>()
             : -1;
}

}  // namespace

std::shared_ptr<const Offering> MakeOffering(std::shared_ptr<const weights::Snapshot> snapshot) {
  auto out = std::make_shared<Offering>();
  out->manifest = weights::MakeManifest(*snapshot);
  out->manifest_text = weights::FormatManifest(out->manifest);
  out->digest = weights::Digest(snapshot->tensors);
  out->snapshot = std::move(snapshot);
  return out;
}

Task<Result<Publisher::Held>> Publisher::Enter(TimePoint deadline) {
  const Json who = {{"name", identity_.name}, {"started_us", identity_.started_us}};
  Task<Result<std::string>> sending =
      server_.Send({.target = "/weights/v1/publishers", .body = who.dump()}, deadline, kRemedy);
  const Result<std::string> body = co_await std::move(sending);
  if (!body.ok()) co_return body.status();
  const Result<Json> answer = ParseAnswer(*body);
  if (!answer.ok()) co_return answer.status().WithContext(server_.url());
  const std::string ticket = Text(Field(*answer, "ticket"));
  if (ticket.empty()) {
    co_return DataLoss(server_.url() + " gave no ticket to publish weights with");
  }
  server_.SetTicket(ticket);
  co_return Held{.policy_version = Integer(Field(*answer, "policy_version")),
                 .digest = Text(Field(*answer, "weights_digest"))};
}

Task<Status> Publisher::Check(TimePoint deadline) {
  Task<Result<std::string>> sending =
      server_.Send({.method = "GET", .target = "/weights/v1"}, deadline, "");
  const Result<std::string> body = co_await std::move(sending);
  co_return body.status();
}

// What it asks for, checked: an index or a size that is none would make us read beyond the weights.
Task<Result<Publisher::Plan>> Publisher::Begin(const Offering& offering, TimePoint deadline) {
  Task<Result<std::string>> sending = server_.Send(
      {.target = "/weights/v1/syncs", .body = offering.manifest_text}, deadline, kRemedy);
  const Result<std::string> body = co_await std::move(sending);
  if (!body.ok()) co_return body.status();
  const Result<Json> answer = ParseAnswer(*body);
  if (!answer.ok()) co_return answer.status().WithContext(server_.url());
  Plan plan;
  const int64_t sync = Integer(Field(*answer, "sync"));
  plan.chunk_bytes = Integer(Field(*answer, "chunk_bytes"));
  const Json& missing = Field(*answer, "missing");
  const Status wrong =
      DataLoss(server_.url() + " did not say which tensors to send, and in what pieces");
  if (sync < 0 || plan.chunk_bytes < 1 || plan.chunk_bytes > kChunkBytesMax ||
      !missing.is_array() || missing.size() > offering.manifest.tensors.size()) {
    co_return wrong;
  }
  plan.sync = fmt::format("/weights/v1/syncs/{}/", sync);
  for (const Json& each : missing) {
    const int64_t index = Integer(each);
    if (index < 0 || index >= static_cast<int64_t>(offering.manifest.tensors.size())) {
      co_return wrong;
    }
    const std::string& name = offering.manifest.tensors[static_cast<size_t>(index)].name;
    plan.tensors.push_back(&offering.snapshot->tensors.at(name));
    plan.offsets.push_back(plan.bytes);
    plan.bytes += static_cast<int64_t>(plan.tensors.back()->bytes().size());
  }
  plan.chunks = (plan.bytes + plan.chunk_bytes - 1) / plan.chunk_bytes;
  if (Integer(Field(*answer, "chunks")) != plan.chunks) co_return wrong;
  co_return plan;
}

std::string Publisher::Chunk(const Plan& plan, int64_t chunk) {
  const int64_t begin = chunk * plan.chunk_bytes;
  const int64_t end = std::min(begin + plan.chunk_bytes, plan.bytes);
  std::string out;
  out.reserve(static_cast<size_t>(end - begin));
  auto at =
      static_cast<size_t>(std::ranges::upper_bound(plan.offsets, begin) - plan.offsets.begin()) - 1;
  for (; at < plan.tensors.size() && plan.offsets[at] < end; ++at) {
    const auto bytes = plan.tensors[at]->bytes();
    const int64_t from = std::max<int64_t>(begin - plan.offsets[at], 0);
    const int64_t to = std::min(end - plan.offsets[at], static_cast<int64_t>(bytes.size()));
    if (from >= to) continue;
    out.append(reinterpret_cast<const char*>(bytes.data()) + from, static_cast<size_t>(to - from));
  }
  return out;
}

Task<void> Publisher::Lane(Plan* plan, TimePoint deadline) {
  while (plan->status.ok() && plan->next < plan->chunks) {
    const int64_t chunk = plan->next++;
    Ask ask{.method = "PUT",
            .target = fmt::format("{}chunks/{}", plan->sync, chunk),
            .body = Chunk(*plan, chunk),
            .content_type = "application/octet-stream"};
    const auto size = static_cast<int64_t>(ask.body.size());
    Task<Result<std::string>> sending = server_.Send(std::move(ask), deadline, "");
    const Result<std::string> body = co_await std::move(sending);
    if (!body.ok() && plan->status.ok()) plan->status = body.status();
    if (body.ok()) bytes_sent_ += size;
  }
  if (--plan->lanes == 0) plan->done->Set(true);
}

Task<Status> Publisher::Give(std::shared_ptr<const Offering> offering, int64_t* committing,
                             TimePoint deadline) {
  Task<Result<Plan>> beginning = Begin(*offering, deadline);
  Result<Plan> plan = co_await std::move(beginning);
  if (!plan.ok()) co_return plan.status();
  plan->done.emplace(loop_);
  plan->lanes = kLanes;
  std::vector<Task<void>> lanes;
  lanes.reserve(kLanes);
  for (int i = 0; i < kLanes; ++i) lanes.push_back(Lane(&*plan, deadline));
  for (Task<void>& lane : lanes) StartTask(lane);
  auto waiting = plan->done->Wait();
  co_await waiting;
  if (!plan->status.ok()) co_return plan->status;
  *committing = offering->manifest.policy_version;
  Task<Result<std::string>> sending =
      server_.Send({.target = plan->sync + "commit", .body = "{}"}, deadline, "");
  const Result<std::string> body = co_await std::move(sending);
  if (!body.ok()) co_return body.status();
  const Result<Json> answer = ParseAnswer(*body);
  if (!answer.ok()) co_return answer.status().WithContext(server_.url());
  if (Integer(Field(*answer, "policy_version")) != offering->manifest.policy_version ||
      Text(Field(*answer, "weights_digest")) != offering->digest) {
    co_return DataLoss(fmt::format(
        "{} has weights of version {} and digest '{}' after it was given version {} with digest {}",
        server_.url(), Integer(Field(*answer, "policy_version")),
        Text(Field(*answer, "weights_digest")).substr(0, 40), offering->manifest.policy_version,
        offering->digest));
  }
  for (const auto& [name, tensor] : offering->snapshot->tensors) {
    bytes_offered_ += static_cast<int64_t>(tensor.bytes().size());
  }
  co_return OkStatus();
}

}  // namespace forebay::rollout::external
