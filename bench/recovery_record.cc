#include "bench/recovery_record.h"

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "forebay/base/bytes.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::bench {
namespace {
constexpr uint64_t kTokensMost = 1200;
}  // namespace

Trajectory RecoveryTrajectory(int64_t group_id, int32_t member) {
  Trajectory t;
  t.id = {.trajectory_id = group_id + member,
          .group_id = group_id,
          .member = member,
          .attempt = 0,
          .task_id = group_id};
  t.environment = "recovery";
  Rng rng(static_cast<uint64_t>(t.id.trajectory_id));
  const auto tokens = static_cast<int32_t>(2 + rng.Below(kTokensMost));
  const int32_t prompt = tokens / 2;
  for (int32_t i = 0; i < tokens; ++i) {
    t.tokens.push_back(static_cast<int32_t>(rng.Below(150'000)));
    t.loss_mask.push_back(i >= prompt ? 1 : 0);
    t.rollout_logprobs.push_back(i >= prompt ? -1.0F : 0.0F);
  }
  t.versions.push_back({.policy_version = 0, .tokens = tokens - prompt});
  t.turns.push_back({.kind = TurnKind::kPrompt, .begin = 0, .end = prompt});
  t.turns.push_back({.kind = TurnKind::kAction, .begin = prompt, .end = tokens});
  t.rewards["task"] = 1;
  return t;
}

bool IsRecoveryTrajectory(const Trajectory& trajectory) {
  return trajectory == RecoveryTrajectory(trajectory.id.group_id, trajectory.id.member);
}

buffer::BufferOptions RecoveryBufferOptions(const std::string& folder,
                                            const std::string& durability) {
  return {.folder = folder,
          .durability = durability == "os" ? buffer::Durability::kOs : buffer::Durability::kSync,
          .group_size = kRecoveryGroupSize,
          .max_staleness = std::numeric_limits<int32_t>::max(),
          .segment_bytes = int64_t{4} << 20,
          .memory_bytes_max = int64_t{32} << 20,
          .disk_bytes_max = int64_t{1} << 30,
          .implied_dispatch = true};
}

Result<std::unique_ptr<buffer::Client>> ConnectToRecoveryServer(const std::string& folder,
                                                                const std::string& producer) {
  const TimePoint deadline = Now() + std::chrono::seconds(60);
  while (true) {
    auto client =
        buffer::Client::Connect({.address = "unix:" + folder + "/socket", .producer = producer});
    const StatusCode code = client.status().code();
    // It does not listen yet, or is killed in the middle of the handshake.
    const bool transient = code == StatusCode::kUnavailable || code == StatusCode::kNotFound ||
                           code == StatusCode::kDeadlineExceeded;
    if (client.ok() || !transient || Now() > deadline) return client;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Status WriteCheckpoint(const std::string& path, const TrainedCheckpoint& checkpoint) {
  ByteWriter out;
  out.Put(checkpoint.batch);
  out.Put(checkpoint.wrong);
  out.Put(static_cast<uint64_t>(checkpoint.trained.size()));
  out.PutColumn(checkpoint.trained);
  return WriteFileAtomic(path, std::move(out).Take());
}

Result<TrainedCheckpoint> ReadCheckpoint(const std::string& path) {
  const Result<std::string> bytes = ReadFile(path);
  if (bytes.status().code() == StatusCode::kNotFound) return TrainedCheckpoint{};
  FB_RETURN_IF_ERROR(bytes.status());
  ByteReader in(*bytes);
  TrainedCheckpoint checkpoint;
  checkpoint.batch = in.Get<int64_t>();
  checkpoint.wrong = in.Get<int64_t>();
  checkpoint.trained = in.GetColumn<int64_t>(in.Get<uint64_t>());
  if (!in.ok()) return DataLoss("the checkpoint '" + path + "' is cut");
  return checkpoint;
}

}  // namespace forebay::bench
