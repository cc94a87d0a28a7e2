// Ready groups of a Table: who is next, and who holds what.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/group_store.h"
#include "forebay/buffer/table/ready_queue.h"
#include "forebay/buffer/table/ready_selector.h"
#include "forebay/buffer/table/table.h"
#include "forebay/buffer/table/take_pool.h"

namespace forebay::buffer {
namespace {

float WeightOf(const GroupStore& store, uint32_t g) {
  float weight = 0;
  for (uint32_t i = 0; i < store.group_size(); ++i) {
    weight = std::max(weight, store.slot(store.FirstSlot(g) + i).priority);
  }
  return weight;
}

}  // namespace

bool Table::IsReady(const Group& group) const {
  return group.pending == store_.group_size() && group.holder == 0 &&
         (group.flags & Group::kRetained) == 0;
}

void Table::EnterReady(uint32_t g) {
  Group& group = store_.group(g);
  ++ready_groups_;
  if (group.queued != group.min_version) {
    group.queued = group.min_version;
    ready_.Push({.version = group.min_version, .group = g, .group_id = group.group_id});
    FilterReady();
  }
  if (selector_) group.place = selector_->Add(g, WeightOf(store_, g));
}

void Table::LeaveReady(uint32_t g) {
  --ready_groups_;
  if (selector_) {
    const uint32_t place = std::exchange(store_.group(g).place, kNoIndex);
    const uint32_t moved = selector_->Remove(place);
    if (moved != ReadySelector::kNone) store_.group(moved).place = place;
  }
  FilterReady();
}

// The queue's entries of groups that are not ready (any more) never outnumber the others by far.
void Table::FilterReady() {
  constexpr int64_t kGarbageKept = 64;
  if (int64_t{ready_.size()} <= 2 * ready_groups_ + kGarbageKept) return;
  ready_.Filter([this](const ReadyQueue::Entry& entry) {
    Group& group = store_.group(entry.group);
    if (group.group_id != entry.group_id || !store_.IsWhole(entry.group) ||
        group.queued != entry.version) {
      return false;
    }
    group.queued = kNoVersion;  // a second entry of it goes
    return IsReady(group);
  });
  ready_.ForEach(
      [this](const ReadyQueue::Entry& entry) { store_.group(entry.group).queued = entry.version; });
}

uint32_t Table::PopOldest() {
  while (true) {
    FB_CHECK(!ready_.empty(), "a ready group that is not queued");
    const ReadyQueue::Entry entry = ready_.Pop();
    Group& group = store_.group(entry.group);
    if (group.group_id != entry.group_id || !store_.IsWhole(entry.group) ||
        group.queued != entry.version) {
      continue;
    }
    group.queued = kNoVersion;
    if (IsReady(group)) return entry.group;
  }
}

// A held group is neither ready nor can it become stale.
void Table::Hold(uint32_t g, int64_t holder) {
  Group& group = store_.group(g);
  FB_CHECK(IsReady(group), "only ready groups are held");
  group.holder = holder;
  for (uint32_t i = 0; i < store_.group_size(); ++i)
    versions_.Unlink(store_, store_.FirstSlot(g) + i);
  LeaveReady(g);
}

void Table::Unhold(uint32_t g) {
  Group& group = store_.group(g);
  group.holder = 0;
  for (uint32_t i = 0; i < store_.group_size(); ++i) {
    const uint32_t s = store_.FirstSlot(g) + i;
    if (store_.slot(s).state == SlotState::kPending) versions_.Link(store_, s);
  }
  if (store_.IsWhole(g)) EnterReady(g);
}

void Table::LetGo(uint32_t g) {
  for (uint32_t i = 0; i < store_.group_size(); ++i) {
    const uint32_t s = store_.FirstSlot(g) + i;
    const SlotState state = store_.slot(s).state;
    if (state != SlotState::kPending && state != SlotState::kRetained) continue;
    Unplace(s);
    store_.UnindexSlot(s);
  }
  const uint32_t pending = store_.group(g).pending;
  if (pending > 0 && pending < store_.group_size()) --partial_groups_;
  FinishGroup(g);
}

void Table::BuildSelector() {
  if (selector_) return;
  selector_.emplace();
  for (uint32_t g = 0; g < store_.end(); ++g) {
    Group& group = store_.group(g);
    if (group.group_id >= 0 && IsReady(group)) group.place = selector_->Add(g, WeightOf(store_, g));
  }
}

std::vector<int64_t> Table::SpareGroups() {
  std::vector<int64_t> groups = std::exchange(spare_, {});
  groups.clear();
  return groups;
}

void Table::KeepSpare(std::vector<int64_t>& groups) {
  if (groups.capacity() > spare_.capacity()) spare_.swap(groups);
}

std::optional<int64_t> Table::Take(int64_t groups, Selector selector, TimePoint expires, Rng& rng) {
  FB_CHECK(groups > 0, "a take of no groups");
  if (groups > ready_groups_ || !takes_.HasRoom()) return std::nullopt;
  if (selector != Selector::kOldest) BuildSelector();
  if (selector == Selector::kOldest) {
    // The first of a heap are among its least.
    ready_.ForFirst(2 * groups,
                    [this](const ReadyQueue::Entry& entry) { store_.PrefetchGroup(entry.group); });
  }
  TakeState& take = takes_.Add(expires);
  if (take.groups.capacity() == 0) take.groups = SpareGroups();
  for (int64_t i = 0; i < groups; ++i) {
    uint32_t g = kNoIndex;
    switch (selector) {
      case Selector::kOldest:
        g = PopOldest();
        break;
      case Selector::kUniform:
        g = selector_->DrawUniform(rng);
        break;
      case Selector::kPriority:
        g = selector_->DrawWeighted(rng);
        break;
    }
    Hold(g, -take.take_id);
    take.groups.push_back(store_.group(g).group_id);
  }
  std::ranges::sort(take.groups);
  taken_groups_ += groups;
  return take.take_id;
}

Status Table::AcknowledgeTake(int64_t take_id) {
  if (takes_.Find(take_id) == nullptr) {
    return NotFound(fmt::format("take {} has expired, has ended or never was", take_id));
  }
  takes_.Remove(take_id, spare_);
  FindGroups(spare_, &found_);
  for (const uint32_t g : found_) {
    ledger_.pending -= group_size();
    ledger_.trained += group_size();
    LetGo(g);
  }
  taken_groups_ -= std::ssize(spare_);
  return OkStatus();
}

Status Table::GiveBackTake(int64_t take_id) {
  if (takes_.Find(take_id) == nullptr) {
    return NotFound(fmt::format("take {} has expired, has ended or never was", take_id));
  }
  takes_.Remove(take_id, spare_);
  for (const int64_t group_id : spare_) Unhold(store_.FindGroup(group_id));
  taken_groups_ -= std::ssize(spare_);
  return OkStatus();
}

std::vector<int64_t> Table::ExpireTakes(TimePoint now) {
  std::vector<int64_t> expired;
  while (const std::optional<int64_t> take_id = takes_.NextExpired(now)) {
    const Status given_back = GiveBackTake(*take_id);
    FB_CHECK(given_back.ok(), given_back.message());
    expired.push_back(*take_id);
  }
  return expired;
}

}  // namespace forebay::buffer
