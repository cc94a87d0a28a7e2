// The snapshot of a Table: everything but takes. Of more than listed_pending_max pending and
// retained trajectories only the ids: their records say the rest, and Restore puts them back.
//
//   u16 format, u8 lists pending, i32 group_size
//   i64 committed_batch, released_batch, next_batch
//   i64 dispatched, trained, late, u32 reasons, i64 rejected[reasons]
//   IdSet dispatched, known groups, finished groups
//   u64 batches x { i64 sequence, learner_version, u8 retained, u64 n, i64 group[n] }
//   if it does not list pending: IdSet of pending and retained trajectories
//   u64 groups x { i64 id, group_size x member }: all groups, or those that are not whole
//     member: u8 state (| 0x80: was tried), u16 attempt, i64 task, trajectory
//       and if it lists pending and this is: u32 version, f32 priority, u32 segment, offset, bytes
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/bytes.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/group_store.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/buffer/table/table.h"

namespace forebay::buffer {
namespace {

constexpr uint16_t kFormat = 2;
constexpr uint8_t kTriedBit = 0x80;
constexpr size_t kMemberBytes = 1 + 2 + 2 * 8;
constexpr int64_t kCountMax = int64_t{1} << 56;  // sums of such do not overflow

Status Broken(std::string_view what) { return DataLoss(fmt::format("table snapshot: {}", what)); }

}  // namespace

// Listing looks at every group, and at what was once one: not after a flood.
bool Table::ListsPending() const {
  return present_count_ <= listed_pending_max_ &&
         (!present_ || int64_t{store_.end()} <= 4 * listed_pending_max_);
}

std::string Table::EncodeSnapshot() const {
  FB_CHECK(!restoring_, "a table that is being restored has no snapshot");
  const bool lists = ListsPending();
  int64_t trained = ledger_.trained;
  for (auto it = LowerBatch(committed_batch_ + 1); it != batches_.end(); ++it) {
    if (it->trained && !it->retained) trained -= std::ssize(it->groups) * group_size();
  }
  ByteWriter out;
  out.Put(kFormat);
  out.Put(static_cast<uint8_t>(lists ? 1 : 0));
  out.Put(group_size());
  out.Put(committed_batch_);
  out.Put(released_batch_);
  out.Put(next_batch_);
  out.Put(ledger_.dispatched);
  out.Put(trained);
  out.Put(ledger_.late);
  out.Put(static_cast<uint32_t>(ledger_.rejected.size()));
  for (const int64_t n : ledger_.rejected) out.Put(n);
  dispatched_.Encode(out);
  known_.Encode(out);
  finished_.Encode(out);
  out.Put(static_cast<uint64_t>(batches_.size()));
  for (const BatchState& batch : batches_) {
    out.Put(batch.sequence);
    out.Put(batch.learner_version);
    out.Put(static_cast<uint8_t>(batch.retained ? 1 : 0));
    out.Put(static_cast<uint64_t>(batch.groups.size()));
    out.PutColumn(batch.groups);
  }
  if (!lists) present_->Encode(out);
  const std::vector<uint32_t> groups = lists ? AllGroups() : OpenGroups();
  constexpr size_t kGroupBytes = 8, kMemberBytes = 40;
  out.Reserve(out.size() + groups.size() * (kGroupBytes + kMemberBytes * store_.group_size()));
  out.Put(static_cast<uint64_t>(groups.size()));
  for (const uint32_t g : groups) EncodeGroup(g, lists, out);
  return std::move(out).Take();
}

void Table::EncodeGroup(uint32_t g, bool details, ByteWriter& out) const {
  out.Put(store_.group(g).group_id);
  for (uint32_t i = 0; i < store_.group_size(); ++i) {
    const Slot& slot = store_.slot(store_.FirstSlot(g) + i);
    const bool present = slot.state == SlotState::kPending || slot.state == SlotState::kRetained;
    const auto state = static_cast<uint8_t>(present ? SlotState::kPending : slot.state);
    const bool tried = (slot.flags & Slot::kTried) != 0;
    out.Put(static_cast<uint8_t>(state | (tried ? kTriedBit : 0)));
    out.Put(slot.attempt);
    out.Put(slot.task_id);
    out.Put(slot.trajectory_id);
    if (!present || !details) continue;
    out.Put(slot.min_version);
    out.Put(slot.priority);
    out.Put(slot.segment);
    out.Put(slot.offset_64);
    out.Put(slot.payload_bytes);
  }
}

Result<Table> Table::DecodeSnapshot(std::string_view bytes, int64_t listed_pending_max) {
  ByteReader in(bytes);
  if (in.Get<uint16_t>() != kFormat) return Broken("unknown format");
  const auto lists = in.Get<uint8_t>();
  if (lists > 1) return Broken("unknown form");
  const auto group_size = in.Get<int32_t>();
  if (group_size <= 0 || group_size - 1 > kMemberMax) return Broken("group_size");
  Table t(group_size, listed_pending_max);
  std::map<int64_t, int64_t> held;
  FB_RETURN_IF_ERROR(t.DecodeHead(in));
  FB_RETURN_IF_ERROR(t.DecodeBatches(in, held));
  if (lists == 0) {
    FB_RETURN_IF_ERROR(t.DecodeAwaited(in, std::move(held)));
    FB_RETURN_IF_ERROR(t.DecodeGroups(in, t.restoring_->held));
  } else {
    FB_RETURN_IF_ERROR(t.DecodeGroups(in, held));
  }
  if (!in.AtEnd()) return Broken("cut short or too long");
  if (!t.ledger_.balanced()) return Broken("its ledger does not balance");
  return t;
}

Status Table::DecodeHead(ByteReader& in) {
  committed_batch_ = in.Get<int64_t>();
  released_batch_ = in.Get<int64_t>();
  next_batch_ = in.Get<int64_t>();
  if (committed_batch_ < 0 || committed_batch_ > kCountMax || released_batch_ < 0 ||
      released_batch_ > committed_batch_ || next_batch_ < 1 || next_batch_ > kCountMax) {
    return Broken("batch sequence");
  }
  ledger_.dispatched = in.Get<int64_t>();
  ledger_.trained = in.Get<int64_t>();
  ledger_.late = in.Get<int64_t>();
  bool counts = ledger_.dispatched >= 0 && ledger_.dispatched < kCountMax && ledger_.trained >= 0 &&
                ledger_.trained < kCountMax;
  if (in.Get<uint32_t>() != ledger_.rejected.size()) return Broken("reasons of rejection");
  for (int64_t& n : ledger_.rejected) {
    n = in.Get<int64_t>();
    counts = counts && n >= 0 && n < kCountMax;
  }
  if (!counts) return Broken("a count that is negative or too large");
  if (!IdSet::Decode(in, dispatched_) || !IdSet::Decode(in, known_) ||
      !IdSet::Decode(in, finished_) || !known_.Includes(finished_)) {
    return Broken("id sets");
  }
  return OkStatus();
}

Status Table::DecodeBatches(ByteReader& in, std::map<int64_t, int64_t>& held) {
  const auto batches = in.Get<uint64_t>();
  if (!in.Fits(batches, 8 + 8 + 1 + 8)) return Broken("batches");
  for (uint64_t b = 0; b < batches; ++b) {
    BatchState batch{
        .sequence = in.Get<int64_t>(), .learner_version = in.Get<int64_t>(), .handed_out = true};
    const auto retained = in.Get<uint8_t>();
    batch.retained = batch.trained = retained == 1;
    batch.groups = in.GetColumn<int64_t>(in.Get<uint64_t>());
    const int64_t last = batches_.empty() ? 0 : batches_.back().sequence;
    const bool follows = batches_.empty() || batches_.back().retained || !batch.retained;
    if (retained > 1 || !follows || batch.sequence <= last || batch.sequence >= next_batch_ ||
        (!batch.retained && batch.sequence <= committed_batch_)) {
      return Broken("batch sequence");
    }
    for (size_t i = 0; i < batch.groups.size(); ++i) {
      const int64_t group_id = batch.groups[i];
      if (group_id < 0 || !known_.Contains(group_id) ||
          (i > 0 && group_id <= batch.groups[i - 1]) ||
          finished_.Contains(group_id) != batch.retained ||
          !held.emplace(group_id, batch.sequence).second) {
        return Broken("a batch of groups that it cannot have");
      }
    }
    batches_.push_back(std::move(batch));
  }
  return in.ok() ? OkStatus() : Broken("batches");
}

Status Table::DecodeAwaited(ByteReader& in, std::map<int64_t, int64_t> held) {
  Restoration restoring{.held = std::move(held)};
  if (!IdSet::Decode(in, restoring.awaited)) return Broken("ids of pending trajectories");
  int64_t retained = 0;
  for (const BatchState& batch : batches_) {
    if (batch.retained) retained += std::ssize(batch.groups) * group_size();
  }
  restoring.pending = restoring.awaited.count() - retained;
  if (restoring.pending < 0 || restoring.awaited.count() >= int64_t{kNoIndex} ||
      !dispatched_.Includes(restoring.awaited)) {
    return Broken("ids of pending trajectories");
  }
  ledger_.pending += restoring.pending;
  restoring_ = std::move(restoring);
  return OkStatus();
}

Status Table::DecodeGroups(ByteReader& in, const std::map<int64_t, int64_t>& held) {
  const bool details = !restoring_;
  const auto groups = in.Get<uint64_t>();
  if (!in.Fits(groups, 8 + kMemberBytes * store_.group_size())) return Broken("groups");
  size_t held_groups = 0;
  int64_t last = -1;
  for (uint64_t n = 0; n < groups; ++n) {
    const auto group_id = in.Get<int64_t>();
    const auto batch = held.find(group_id);
    const bool is_held = batch != held.end();
    if (group_id <= last || !store_.HasRoom() || !known_.Contains(group_id) ||
        (!is_held && finished_.Contains(group_id))) {
      return Broken("a group that is unknown, finished or there twice");
    }
    last = group_id;
    const uint32_t g = store_.AddGroup(group_id);
    Group& group = store_.group(g);
    if (is_held) {
      if (!details) return Broken("a batch of groups that are not complete");
      group.holder = batch->second;
      if (FindBatch(batch->second)->retained) group.flags = group.flags | Group::kRetained;
      ++held_groups;
    }
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      FB_RETURN_IF_ERROR(DecodeMember(in, store_.FirstSlot(g) + i));
    }
    if ((is_held || !details) && is_held != store_.IsWhole(g)) {
      return Broken("a group that should not be whole, or one that should");
    }
  }
  if (details && held_groups != held.size()) return Broken("a batch of groups that are not there");
  return in.ok() ? OkStatus() : Broken("groups");
}

Status Table::DecodeMember(ByteReader& in, uint32_t s) {
  Slot& slot = store_.slot(s);
  const auto state = in.Get<uint8_t>();
  const bool tried = (state & kTriedBit) != 0;
  slot.flags = tried ? Slot::kTried : 0;
  slot.attempt = in.Get<uint16_t>();
  slot.task_id = in.Get<int64_t>();
  slot.trajectory_id = in.Get<int64_t>();
  switch (static_cast<SlotState>(state & ~kTriedBit)) {
    case SlotState::kVacant:
      return OkStatus();
    case SlotState::kInFlight:
    case SlotState::kPending:
      break;
    default:
      return Broken("state of a member");
  }
  if (!tried || !dispatched_.Contains(slot.trajectory_id) ||
      store_.FindSlot(slot.trajectory_id) != kNoIndex) {
    return Broken("an id that was never dispatched, or is there twice");
  }
  if ((state & ~kTriedBit) == static_cast<uint8_t>(SlotState::kPending) && restoring_) {
    if (!restoring_->awaited.Contains(slot.trajectory_id))
      return Broken("an id that is not pending");
    slot.state = SlotState::kAwaited;
    return OkStatus();
  }
  store_.IndexSlot(s);
  if ((state & ~kTriedBit) == static_cast<uint8_t>(SlotState::kInFlight)) {
    slot.state = SlotState::kInFlight;
    ++ledger_.in_flight;
    return OkStatus();
  }
  PendingInfo info;
  info.min_version = in.Get<uint32_t>();
  info.priority = in.Get<float>();
  info.segment = in.Get<uint32_t>();
  info.offset_64 = in.Get<uint32_t>();
  info.payload_bytes = in.Get<uint32_t>();
  if (info.min_version > kVersionMax || !std::isfinite(info.priority) || info.priority < 0) {
    return Broken("version or priority of a member");
  }
  if ((store_.group(store_.GroupOfSlot(s)).flags & Group::kRetained) == 0) ++ledger_.pending;
  Place(s, info);
  return OkStatus();
}

}  // namespace forebay::buffer
