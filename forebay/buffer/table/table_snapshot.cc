// The snapshot of a Table: everything but the trajectories' content. Written at the start of each
// segment of the log, so that older segments can go without losing counts or open attempts.
//
//   u16 format, i32 group_size, i64 committed_batch, i64 next_batch
//   i64 dispatched, trained, late, u32 reasons, i64 rejected[reasons]
//   IdSet dispatched, IdSet finished groups
//   u64 groups x { i64 id, group_size x { u8 state, i32 attempt, i64 task, i64 trajectory, i64
//   version, i64 segment } } u64 batches x { i64 sequence, i64 learner_version, u64 n, i64 group[n]
//   }
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/bytes.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/buffer/table/table.h"

namespace forebay::buffer {
namespace {

constexpr uint16_t kFormat = 1;
constexpr size_t kMemberBytes = 1 + 4 + 4 * 8;
constexpr int32_t kGroupSizeMax = 1 << 20;

Status Broken(std::string_view what) { return DataLoss(fmt::format("table snapshot: {}", what)); }

}  // namespace

std::string Table::EncodeSnapshot() const {
  ByteWriter out;
  out.Put(kFormat);
  out.Put(group_size_);
  out.Put(committed_batch_);
  out.Put(next_batch_);
  out.Put(ledger_.dispatched);
  out.Put(ledger_.trained);
  out.Put(ledger_.late);
  out.Put(static_cast<uint32_t>(ledger_.rejected.size()));
  for (const int64_t n : ledger_.rejected) out.Put(n);
  dispatched_.Encode(out);
  finished_.Encode(out);
  out.Put(static_cast<uint64_t>(groups_.size()));
  for (const auto& [group_id, group] : groups_) {
    out.Put(group_id);
    for (const Member& m : group.members) {
      out.Put(static_cast<uint8_t>(m.state));
      out.Put(m.attempt);
      out.Put(m.task_id);
      out.Put(m.trajectory_id);
      out.Put(m.info.min_version);
      out.Put(m.info.segment);
    }
  }
  out.Put(static_cast<uint64_t>(batches_.size()));
  for (const auto& [sequence, batch] : batches_) {
    out.Put(sequence);
    out.Put(batch.learner_version);
    out.Put(static_cast<uint64_t>(batch.groups.size()));
    for (const int64_t group_id : batch.groups) out.Put(group_id);
  }
  return std::move(out).Take();
}

Result<Table> Table::DecodeSnapshot(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.Get<uint16_t>() != kFormat) return Broken("unknown format");
  const auto group_size = in.Get<int32_t>();
  if (group_size <= 0 || group_size > kGroupSizeMax) return Broken("group_size");
  Table t(group_size);
  t.committed_batch_ = in.Get<int64_t>();
  t.next_batch_ = in.Get<int64_t>();
  t.ledger_.dispatched = in.Get<int64_t>();
  t.ledger_.trained = in.Get<int64_t>();
  t.ledger_.late = in.Get<int64_t>();
  if (in.Get<uint32_t>() != t.ledger_.rejected.size()) return Broken("reasons of rejection");
  for (int64_t& n : t.ledger_.rejected) n = in.Get<int64_t>();
  if (!IdSet::Decode(in, t.dispatched_) || !IdSet::Decode(in, t.finished_))
    return Broken("id sets");
  const auto groups = in.Get<uint64_t>();
  if (!in.Fits(groups, 8 + kMemberBytes * static_cast<size_t>(group_size))) return Broken("groups");
  for (uint64_t g = 0; g < groups; ++g) {
    const auto group_id = in.Get<int64_t>();
    if (group_id < 0 || t.groups_.count(group_id) > 0) return Broken("a group twice");
    Group& group = t.groups_[group_id];
    group.members.resize(static_cast<size_t>(group_size));
    for (int32_t i = 0; i < group_size; ++i) {
      Member& m = group.members[static_cast<size_t>(i)];
      const auto state = in.Get<uint8_t>();
      if (state > static_cast<uint8_t>(State::kPending)) return Broken("state of a member");
      m.state = static_cast<State>(state);
      m.attempt = in.Get<int32_t>();
      m.task_id = in.Get<int64_t>();
      m.trajectory_id = in.Get<int64_t>();
      m.info.min_version = in.Get<int64_t>();
      m.info.segment = in.Get<int64_t>();
      if (m.state == State::kVacant) continue;
      if (!t.open_.emplace(m.trajectory_id, Place{group_id, i}).second)
        return Broken("an id twice");
      if (m.state == State::kInFlight) {
        ++group.in_flight;
        ++t.ledger_.in_flight;
      } else {
        t.EnterPending(group_id, i);
      }
    }
  }
  const auto batches = in.Get<uint64_t>();
  if (!in.Fits(batches, 24)) return Broken("batches");
  for (uint64_t b = 0; b < batches; ++b) {
    BatchState batch{
        .sequence = in.Get<int64_t>(), .learner_version = in.Get<int64_t>(), .handed_out = true};
    batch.groups = in.GetColumn<int64_t>(in.Get<uint64_t>());
    for (const int64_t group_id : batch.groups) {
      const auto it = t.groups_.find(group_id);
      if (it == t.groups_.end() || it->second.pending != group_size || it->second.batch != 0) {
        return Broken("a batch of groups that are not complete");
      }
      t.SetBatch(group_id, it->second, batch.sequence);
    }
    if (batch.sequence <= t.committed_batch_ || batch.sequence >= t.next_batch_)
      return Broken("batch sequence");
    t.batches_[batch.sequence] = std::move(batch);
  }
  if (!in.AtEnd()) return Broken("cut short or too long");
  if (!t.ledger_.balanced()) return Broken("its ledger does not balance");
  return t;
}

}  // namespace forebay::buffer
