#include "forebay/buffer/service/messages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/bytes.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/trajectory/id_bytes.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

Status Broken(std::string_view what) {
  return DataLoss(fmt::format("a {} message that is cut, too long or out of range", what));
}

void PutSecret(const SessionSecret& secret, ByteWriter& out) {
  for (const uint8_t byte : secret) out.Put(byte);
}
SessionSecret GetSecret(ByteReader& in) {
  SessionSecret secret{};
  for (uint8_t& byte : secret) byte = in.Get<uint8_t>();
  return secret;
}

}  // namespace

bool ValidName(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::string EncodeHello(const Hello& hello) {
  ByteWriter out;
  out.Put(kProtocolMagic);
  out.Put(hello.version_min);
  out.Put(hello.version_max);
  out.PutString(hello.token);
  out.PutString(hello.producer);
  PutSecret(hello.secret, out);
  return std::move(out).Take();
}

Result<Hello> ParseHello(std::string_view bytes) {
  ByteReader in(bytes);
  Hello hello;
  if (in.Get<uint32_t>() != kProtocolMagic) return Broken("hello");
  hello.version_min = in.Get<uint16_t>();
  hello.version_max = in.Get<uint16_t>();
  // What follows the versions is the version's: a later one may be read only so far.
  if (in.ok() && hello.version_min > kProtocolVersion) return hello;
  hello.token = in.GetString();
  hello.producer = in.GetString();
  hello.secret = GetSecret(in);
  if (!in.ok() || hello.token.size() > kTokenBytesMax || hello.version_max < hello.version_min) {
    return Broken("hello");
  }
  return hello;
}

std::string EncodeWelcome(const Welcome& welcome) {
  ByteWriter out;
  out.Put(kProtocolMagic);
  out.Put(welcome.version);
  out.Put(static_cast<uint16_t>(welcome.tables.size()));
  out.Put(welcome.credit_bytes);
  out.Put(welcome.ping_ms);
  out.Put(welcome.idle_ms);
  out.Put(welcome.producer_number);
  out.Put(welcome.epoch);
  PutSecret(welcome.secret, out);
  for (const WelcomeTable& table : welcome.tables) {
    out.PutString(table.name);
    out.Put(static_cast<uint8_t>(table.implied_dispatch));
    out.Put(table.group_size);
    out.Put(table.record_bytes_max);
  }
  return std::move(out).Take();
}

Result<Welcome> ParseWelcome(std::string_view bytes) {
  ByteReader in(bytes);
  Welcome welcome;
  if (in.Get<uint32_t>() != kProtocolMagic) return Broken("welcome");
  welcome.version = in.Get<uint16_t>();
  const auto tables = in.Get<uint16_t>();
  welcome.credit_bytes = in.Get<uint64_t>();
  welcome.ping_ms = in.Get<uint32_t>();
  welcome.idle_ms = in.Get<uint32_t>();
  welcome.producer_number = in.Get<int64_t>();
  welcome.epoch = in.Get<int64_t>();
  welcome.secret = GetSecret(in);
  for (uint16_t i = 0; i < tables && in.ok(); ++i) {
    WelcomeTable table;
    table.name = in.GetString();
    table.implied_dispatch = in.Get<uint8_t>() != 0;
    table.group_size = in.Get<int32_t>();
    table.record_bytes_max = in.Get<uint32_t>();
    if (in.ok()) welcome.tables.push_back(std::move(table));
  }
  if (!in.AtEnd()) return Broken("welcome");
  return welcome;
}

std::string EncodeTake(const TakeRequest& take) {
  ByteWriter out;
  out.Put(take.groups);
  out.Put(take.learner_version);
  out.Put(take.expires_ms);
  out.Put(static_cast<uint8_t>(take.selector));
  return std::move(out).Take();
}

Result<TakeRequest> ParseTake(std::string_view bytes) {
  ByteReader in(bytes);
  TakeRequest take;
  take.groups = in.Get<int64_t>();
  take.learner_version = in.Get<int64_t>();
  take.expires_ms = in.Get<int64_t>();
  const auto selector = in.Get<uint8_t>();
  constexpr int64_t kDayMs = int64_t{24} * 3600 * 1000;
  if (!in.AtEnd() || take.groups < 1 || take.groups > (1 << 20) || take.learner_version < 0 ||
      take.expires_ms < 1 || take.expires_ms > kDayMs ||
      selector > static_cast<uint8_t>(Selector::kPriority)) {
    return Broken("take");
  }
  take.selector = static_cast<Selector>(selector);
  return take;
}

namespace {

// As it lies on the wire.
struct RawEntry {
  int64_t trajectory_id, group_id;
  int32_t member, attempt;
  int64_t task_id, min_version;
  float priority;
  uint32_t length;
};
static_assert(sizeof(RawEntry) == kTakenEntryBytes);

}  // namespace

std::string EncodeTakenIndex(const Taken& taken) {
  ByteWriter out;
  out.Reserve(kTakenHeadBytes + taken.trajectories.size() * kTakenEntryBytes);
  out.Put(taken.take_id);
  out.Put(static_cast<uint32_t>(taken.trajectories.size()));
  out.Put(uint32_t{0});
  for (const TrajectoryView& view : taken.trajectories) {
    PutId(view.id, out);
    out.Put(view.min_version);
    out.Put(view.priority);
    out.Put(static_cast<uint32_t>(view.encoded.size()));
  }
  return std::move(out).Take();
}

Result<Taken> ParseTaken(std::string_view bytes) {
  ByteReader in(bytes);
  Taken taken;
  taken.take_id = in.Get<int64_t>();
  const auto count = in.Get<uint32_t>();
  in.Get<uint32_t>();
  if (!in.Fits(count, kTakenEntryBytes)) return Broken("taken");
  const std::string_view index = in.GetRaw(size_t{count} * kTakenEntryBytes);
  taken.trajectories.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    RawEntry raw{};
    std::memcpy(&raw, index.data() + i * sizeof(raw), sizeof(raw));
    taken.trajectories.push_back({.id = {.trajectory_id = raw.trajectory_id,
                                         .group_id = raw.group_id,
                                         .member = raw.member,
                                         .attempt = raw.attempt,
                                         .task_id = raw.task_id},
                                  .min_version = raw.min_version,
                                  .priority = raw.priority,
                                  .encoded = in.GetRaw(raw.length)});
  }
  if (!in.AtEnd()) return Broken("taken");
  return taken;
}

std::string EncodeLease(const LeaseRequest& lease) {
  ByteWriter out;
  out.Put(lease.groups);
  out.Put(lease.learner_version);
  return std::move(out).Take();
}

Result<LeaseRequest> ParseLeaseRequest(std::string_view bytes) {
  ByteReader in(bytes);
  LeaseRequest lease;
  lease.groups = in.Get<int64_t>();
  lease.learner_version = in.Get<int64_t>();
  if (!in.AtEnd() || lease.groups < 1 || lease.groups > (1 << 20) || lease.learner_version < 0) {
    return Broken("lease");
  }
  return lease;
}

std::string EncodeReadBatch(const ReadBatchRequest& request) {
  ByteWriter out;
  out.Put(request.sequence);
  out.Put(request.shard);
  out.Put(request.shards);
  return std::move(out).Take();
}

Result<ReadBatchRequest> ParseReadBatch(std::string_view bytes) {
  ByteReader in(bytes);
  ReadBatchRequest request;
  request.sequence = in.Get<int64_t>();
  request.shard = in.Get<int32_t>();
  request.shards = in.Get<int32_t>();
  if (!in.AtEnd() || request.sequence < 1 || request.shards < 1 || request.shard < 0 ||
      request.shard >= request.shards) {
    return Broken("read batch");
  }
  return request;
}

std::string EncodeBatch(const Batch& batch) {
  ByteWriter out;
  out.Put(batch.sequence);
  out.Put(batch.learner_version);
  out.Put(static_cast<uint32_t>(batch.replay));
  out.Put(static_cast<uint32_t>(batch.trajectories.size()));
  for (const TrajectoryPtr& trajectory : batch.trajectories) out.PutString(Encode(*trajectory));
  return std::move(out).Take();
}

Result<Batch> ParseBatch(std::string_view bytes) {
  ByteReader in(bytes);
  Batch batch;
  batch.sequence = in.Get<int64_t>();
  batch.learner_version = in.Get<int64_t>();
  batch.replay = in.Get<uint32_t>() != 0;
  const auto count = in.Get<uint32_t>();
  if (!in.Fits(count, sizeof(uint32_t))) return Broken("batch");
  batch.trajectories.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const std::string_view encoded = in.GetString();
    if (!in.ok()) return Broken("batch");
    FB_ASSIGN_OR_RETURN(Trajectory trajectory, Decode(encoded));
    batch.trajectories.push_back(std::make_shared<const Trajectory>(std::move(trajectory)));
  }
  if (!in.AtEnd()) return Broken("batch");
  return batch;
}

std::string EncodeAreaSizes(const AreaSizes& sizes) {
  ByteWriter out;
  out.Put(sizes.append_bytes);
  out.Put(sizes.reply_bytes);
  return std::move(out).Take();
}

Result<AreaSizes> ParseAreaSizes(std::string_view bytes) {
  ByteReader in(bytes);
  AreaSizes sizes;
  sizes.append_bytes = in.Get<uint64_t>();
  sizes.reply_bytes = in.Get<uint64_t>();
  if (!in.AtEnd()) return Broken("share");
  return sizes;
}

std::array<char, kSharedPieceBytes> EncodeSharedPiece(const SharedPiece& piece) {
  std::array<char, kSharedPieceBytes> bytes;
  std::memcpy(bytes.data(), &piece, bytes.size());
  return bytes;
}

Result<SharedPiece> ParseSharedPiece(std::string_view bytes) {
  ByteReader in(bytes);
  SharedPiece piece;
  piece.offset = in.Get<uint64_t>();
  piece.bytes = in.Get<uint64_t>();
  if (!in.AtEnd()) return Broken("shared piece");
  return piece;
}

std::string EncodeNumber(int64_t number) {
  ByteWriter out;
  out.Put(number);
  return std::move(out).Take();
}

Result<int64_t> ParseNumber(std::string_view bytes) {
  ByteReader in(bytes);
  const auto number = in.Get<int64_t>();
  if (!in.AtEnd() || number < 0) return Broken("one-number");
  return number;
}

std::string EncodeId(const TrajectoryId& id) {
  ByteWriter out;
  PutId(id, out);
  return std::move(out).Take();
}

Result<TrajectoryId> ParseId(std::string_view bytes) {
  ByteReader in(bytes);
  TrajectoryId id = GetId(in);
  if (!in.AtEnd() || id.trajectory_id < 0 || id.group_id < 0 || id.member < 0 || id.attempt < 0) {
    return Broken("trajectory id");
  }
  return id;
}

std::string EncodeInspect(const InspectRequest& request) {
  ByteWriter out;
  out.Put(request.from);
  out.Put(request.limit);
  return std::move(out).Take();
}

Result<InspectRequest> ParseInspect(std::string_view bytes) {
  ByteReader in(bytes);
  InspectRequest request;
  request.from = in.Get<int64_t>();
  request.limit = in.Get<int64_t>();
  if (!in.AtEnd() || request.limit < 0 || request.limit > 100'000) return Broken("inspect");
  return request;
}

std::string EncodeGroups(const std::vector<GroupInfo>& groups) {
  ByteWriter out;
  out.Put(static_cast<uint32_t>(groups.size()));
  for (const GroupInfo& group : groups) {
    out.Put(group.group_id);
    out.Put(group.batch);
    out.Put(group.take_id);
    out.Put(group.min_version);
    out.Put(static_cast<uint32_t>(group.members.size()));
    for (const MemberState member : group.members) out.Put(static_cast<uint8_t>(member));
  }
  return std::move(out).Take();
}

Result<std::vector<GroupInfo>> ParseGroups(std::string_view bytes) {
  ByteReader in(bytes);
  const auto count = in.Get<uint32_t>();
  if (!in.Fits(count, 4 * sizeof(int64_t) + sizeof(uint32_t))) return Broken("groups");
  std::vector<GroupInfo> groups(count);
  for (GroupInfo& group : groups) {
    group.group_id = in.Get<int64_t>();
    group.batch = in.Get<int64_t>();
    group.take_id = in.Get<int64_t>();
    group.min_version = in.Get<int64_t>();
    const auto members = in.Get<uint32_t>();
    for (const uint8_t member : in.GetColumn<uint8_t>(members)) {
      if (member > static_cast<uint8_t>(MemberState::kPending)) return Broken("groups");
      group.members.push_back(static_cast<MemberState>(member));
    }
  }
  if (!in.AtEnd()) return Broken("groups");
  return groups;
}

namespace {

// Calls fn for every number of a ledger and stats, in the order of the wire.
template <typename L, typename S, typename Fn>
void EachNumber(L& ledger, S& stats, Fn fn) {
  fn(ledger.dispatched);
  fn(ledger.trained);
  fn(ledger.pending);
  fn(ledger.in_flight);
  fn(ledger.late);
  for (auto& rejected : ledger.rejected) fn(rejected);
  fn(stats.ready_groups);
  fn(stats.partial_groups);
  fn(stats.memory_bytes);
  fn(stats.disk_bytes);
  fn(stats.segments);
  fn(stats.appends);
  fn(stats.flushes);
  fn(stats.duplicates);
  fn(stats.taken_groups);
  fn(stats.expired_takes);
}

}  // namespace

std::string EncodeStats(const Ledger& ledger, const BufferStats& stats) {
  ByteWriter out;
  EachNumber(ledger, stats, [&](int64_t number) { out.Put(number); });
  out.Put(stats.append_wait_seconds);
  return std::move(out).Take();
}

Status ParseStats(std::string_view bytes, Ledger* ledger, BufferStats* stats) {
  ByteReader in(bytes);
  EachNumber(*ledger, *stats, [&](int64_t& number) { number = in.Get<int64_t>(); });
  stats->append_wait_seconds = in.Get<double>();
  if (!in.AtEnd()) return Broken("stats");
  return OkStatus();
}

}  // namespace forebay::buffer
