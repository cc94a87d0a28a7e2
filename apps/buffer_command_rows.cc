#include "apps/buffer_command_rows.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/parquet_file.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

constexpr size_t kJsonChunkBytes = size_t{1} << 20;
constexpr size_t kRowGroupBytes = size_t{32} << 20;
constexpr int64_t kRowGroupRows = 65536;

std::string_view TurnKindName(TurnKind kind) {
  constexpr std::array<std::string_view, 3> kNames = {"prompt", "action", "observation"};
  return kNames[static_cast<size_t>(kind)];
}

// Text that is not UTF-8 gets replacement characters.
std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class JsonRows : public RowWriter {
 public:
  explicit JsonRows(int fd) : fd_(fd) {}

  Status Add(const Trajectory& t, const buffer::Fate& fate) override {
    auto out = std::back_inserter(text_);
    fmt::format_to(out,
                   R"({{"trajectory_id":{},"group_id":{},"member":{},"attempt":{},"task_id":{},)"
                   R"("environment":{},"outcome":"{}","state":"{}","reject_reason":{},"batch":{},)",
                   t.id.trajectory_id, t.id.group_id, t.id.member, t.id.attempt, t.id.task_id,
                   Quoted(t.environment), OutcomeName(t.outcome), FateName(fate.kind),
                   fate.kind == buffer::Fate::Kind::kRejected
                       ? fmt::format("\"{}\"", RejectReasonName(fate.reason))
                       : "null",
                   fate.batch == 0 ? "null" : fmt::format("{}", fate.batch));
    std::vector<std::string> rewards;
    rewards.reserve(t.rewards.size());
    for (const auto& [name, value] : t.rewards) {
      rewards.push_back(fmt::format("{}:{}", Quoted(name), value));
    }
    fmt::format_to(out,
                   R"("reward":{},"rewards":{{{}}},"temperature":{},"started_us":{},"ended_us":{},)"
                   R"("min_version":{},"max_version":{},"tokens":[{}],"loss_mask":[{}],)"
                   R"("rollout_logprobs":[{}],"versions":[)",
                   t.reward(), fmt::join(rewards, ","), t.temperature, t.started_us, t.ended_us,
                   t.min_version(), t.max_version(), fmt::join(t.tokens, ","),
                   fmt::join(t.loss_mask, ","), fmt::join(t.rollout_logprobs, ","));
    for (size_t i = 0; i < t.versions.size(); ++i) {
      fmt::format_to(out, R"({}{{"policy_version":{},"tokens":{}}})", i == 0 ? "" : ",",
                     t.versions[i].policy_version, t.versions[i].tokens);
    }
    text_ += R"(],"turns":[)";
    for (size_t i = 0; i < t.turns.size(); ++i) {
      const Turn& turn = t.turns[i];
      fmt::format_to(out,
                     R"({}{{"kind":"{}","begin":{},"end":{},"tool":{},"queue_us":{},)"
                     R"("prefill_us":{},"decode_us":{},"environment_us":{},"reward_us":{}}})",
                     i == 0 ? "" : ",", TurnKindName(turn.kind), turn.begin, turn.end,
                     Quoted(turn.tool), turn.spans.queue_us, turn.spans.prefill_us,
                     turn.spans.decode_us, turn.spans.environment_us, turn.spans.reward_us);
    }
    text_ += "]}\n";
    return text_.size() < kJsonChunkBytes ? OkStatus() : Finish();
  }

  Status Finish() override {
    for (size_t at = 0; at < text_.size();) {
      const ssize_t n = ::write(fd_, text_.data() + at, text_.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus("cannot write the rows", errno);
      at += static_cast<size_t>(n);
    }
    text_.clear();
    return OkStatus();
  }

 private:
  const int fd_;
  std::string text_;
};

using Kind = ParquetColumn::Kind;
using Shape = ParquetColumn::Shape;

// A leaf of the schema, in its order.
enum Leaf : size_t {
  kTrajectoryId,
  kGroupId,
  kMember,
  kAttempt,
  kTaskId,
  kEnvironment,
  kOutcome,
  kState,
  kRejectReason,
  kBatch,
  kReward,
  kRewardName,
  kRewardValue,
  kTemperature,
  kStartedUs,
  kEndedUs,
  kMinVersion,
  kMaxVersion,
  kTokens,
  kLossMask,
  kLogprobs,
  kVersionsVersion,
  kVersionsTokens,
  kTurnKind,
  kTurnBegin,
  kTurnEnd,
  kTurnTool,
  kTurnQueue,
  kTurnPrefill,
  kTurnDecode,
  kTurnEnvironment,
  kTurnReward,
  kLeaves
};

constexpr std::string_view kSchema = R"(message trajectory {
  required int64 trajectory_id;
  required int64 group_id;
  required int32 member;
  required int32 attempt;
  required int64 task_id;
  required binary environment (STRING);
  required binary outcome (STRING);
  required binary state (STRING);
  optional binary reject_reason (STRING);
  optional int64 batch;
  required double reward;
  required group rewards (MAP) {
    repeated group key_value { required binary key (STRING); required double value; }
  }
  required double temperature;
  required int64 started_us;
  required int64 ended_us;
  required int64 min_version;
  required int64 max_version;
  required group tokens (LIST) { repeated group list { required int32 element; } }
  required group loss_mask (LIST) {
    repeated group list { required int32 element (INTEGER(8, false)); }
  }
  required group rollout_logprobs (LIST) { repeated group list { required float element; } }
  required group versions (LIST) {
    repeated group list {
      required group element { required int64 policy_version; required int32 tokens; }
    }
  }
  required group turns (LIST) {
    repeated group list {
      required group element {
        required binary kind (STRING);
        required int32 begin;
        required int32 end;
        required binary tool (STRING);
        required int64 queue_us;
        required int64 prefill_us;
        required int64 decode_us;
        required int64 environment_us;
        required int64 reward_us;
      }
    }
  }
})";

std::vector<ParquetColumn> MakeColumns() {
  std::vector<ParquetColumn> columns(kLeaves);
  const auto set = [&columns](Kind kind, Shape shape, std::initializer_list<Leaf> leaves) {
    for (const Leaf leaf : leaves) {
      columns[leaf].kind = kind;
      columns[leaf].shape = shape;
    }
  };
  set(Kind::kInt64, Shape::kRequired,
      {kTrajectoryId, kGroupId, kTaskId, kStartedUs, kEndedUs, kMinVersion, kMaxVersion});
  set(Kind::kInt32, Shape::kRequired, {kMember, kAttempt});
  set(Kind::kText, Shape::kRequired, {kEnvironment, kOutcome, kState});
  set(Kind::kText, Shape::kOptional, {kRejectReason});
  set(Kind::kInt64, Shape::kOptional, {kBatch});
  set(Kind::kDouble, Shape::kRequired, {kReward, kTemperature});
  set(Kind::kText, Shape::kRepeated, {kRewardName, kTurnKind, kTurnTool});
  set(Kind::kDouble, Shape::kRepeated, {kRewardValue});
  set(Kind::kInt32, Shape::kRepeated, {kTokens, kLossMask, kVersionsTokens, kTurnBegin, kTurnEnd});
  set(Kind::kFloat, Shape::kRepeated, {kLogprobs});
  set(Kind::kInt64, Shape::kRepeated,
      {kVersionsVersion, kTurnQueue, kTurnPrefill, kTurnDecode, kTurnEnvironment, kTurnReward});
  return columns;
}

class ParquetRows : public RowWriter {
 public:
  explicit ParquetRows(std::unique_ptr<ParquetFile> file) : file_(std::move(file)) {}

  Status Add(const Trajectory& t, const buffer::Fate& fate) override {
    columns_[kTrajectoryId].int64s.push_back(t.id.trajectory_id);
    columns_[kGroupId].int64s.push_back(t.id.group_id);
    columns_[kMember].int32s.push_back(t.id.member);
    columns_[kAttempt].int32s.push_back(t.id.attempt);
    columns_[kTaskId].int64s.push_back(t.id.task_id);
    columns_[kEnvironment].AddText(t.environment);
    columns_[kOutcome].AddText(OutcomeName(t.outcome));
    AddFate(fate);
    columns_[kReward].doubles.push_back(t.reward());
    columns_[kRewardName].AddList(t.rewards.size());
    columns_[kRewardValue].AddList(t.rewards.size());
    for (const auto& [name, value] : t.rewards) {
      columns_[kRewardName].AddText(name);
      columns_[kRewardValue].doubles.push_back(value);
    }
    columns_[kTemperature].doubles.push_back(t.temperature);
    columns_[kStartedUs].int64s.push_back(t.started_us);
    columns_[kEndedUs].int64s.push_back(t.ended_us);
    columns_[kMinVersion].int64s.push_back(t.min_version());
    columns_[kMaxVersion].int64s.push_back(t.max_version());
    AddTokens(t);
    AddTurns(t);
    ++rows_;
    size_t bytes = 0;
    for (const ParquetColumn& column : columns_) bytes += column.bytes();
    return bytes < kRowGroupBytes && rows_ < kRowGroupRows ? OkStatus() : Flush();
  }

  Status Finish() override {
    FB_RETURN_IF_ERROR(Flush());
    return file_->Finish();
  }

 private:
  void AddFate(const buffer::Fate& fate) {
    columns_[kState].AddText(FateName(fate.kind));
    const bool rejected = fate.kind == buffer::Fate::Kind::kRejected;
    columns_[kRejectReason].AddPresence(rejected);
    if (rejected) columns_[kRejectReason].AddText(RejectReasonName(fate.reason));
    columns_[kBatch].AddPresence(fate.batch != 0);
    if (fate.batch != 0) columns_[kBatch].int64s.push_back(fate.batch);
  }
  void AddTokens(const Trajectory& t) {
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const Leaf leaf : {kTokens, kLossMask, kLogprobs}) columns_[leaf].AddList(t.tokens.size());
    append(columns_[kTokens].int32s, t.tokens);
    append(columns_[kLossMask].int32s, t.loss_mask);
    append(columns_[kLogprobs].floats, t.rollout_logprobs);
    columns_[kVersionsVersion].AddList(t.versions.size());
    columns_[kVersionsTokens].AddList(t.versions.size());
    for (const VersionRun& run : t.versions) {
      columns_[kVersionsVersion].int64s.push_back(run.policy_version);
      columns_[kVersionsTokens].int32s.push_back(run.tokens);
    }
  }
  void AddTurns(const Trajectory& t) {
    for (size_t leaf = kTurnKind; leaf <= kTurnReward; ++leaf) {
      columns_[leaf].AddList(t.turns.size());
    }
    for (const Turn& turn : t.turns) {
      columns_[kTurnKind].AddText(TurnKindName(turn.kind));
      columns_[kTurnBegin].int32s.push_back(turn.begin);
      columns_[kTurnEnd].int32s.push_back(turn.end);
      columns_[kTurnTool].AddText(turn.tool);
      columns_[kTurnQueue].int64s.push_back(turn.spans.queue_us);
      columns_[kTurnPrefill].int64s.push_back(turn.spans.prefill_us);
      columns_[kTurnDecode].int64s.push_back(turn.spans.decode_us);
      columns_[kTurnEnvironment].int64s.push_back(turn.spans.environment_us);
      columns_[kTurnReward].int64s.push_back(turn.spans.reward_us);
    }
  }
  Status Flush() {
    if (rows_ == 0) return OkStatus();
    FB_RETURN_IF_ERROR(file_->WriteRowGroup(columns_));
    for (ParquetColumn& column : columns_) column.Clear();
    rows_ = 0;
    return OkStatus();
  }

  std::unique_ptr<ParquetFile> file_;
  std::vector<ParquetColumn> columns_ = MakeColumns();
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<RowWriter> MakeJsonRows(int fd) { return std::make_unique<JsonRows>(fd); }

Result<std::unique_ptr<RowWriter>> MakeParquetRows(int fd) {
  FB_ASSIGN_OR_RETURN(std::unique_ptr<ParquetFile> file, ParquetFile::Create(fd, kSchema));
  return std::unique_ptr<RowWriter>(new ParquetRows(std::move(file)));
}

}  // namespace forebay::apps
