// Batches of a Table, from Lease to Release, and how recovery puts them back.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/group_store.h"
#include "forebay/buffer/table/table.h"

namespace forebay::buffer {

std::deque<BatchState>::iterator Table::LowerBatch(int64_t sequence) {
  return std::ranges::lower_bound(batches_, sequence, {}, &BatchState::sequence);
}

std::deque<BatchState>::const_iterator Table::LowerBatch(int64_t sequence) const {
  return std::ranges::lower_bound(batches_, sequence, {}, &BatchState::sequence);
}

const BatchState& Table::Lease(int64_t groups, int64_t learner_version) {
  FB_CHECK(groups > 0 && groups <= ready_groups_, "a lease of groups that are not there");
  BatchState batch{
      .sequence = next_batch_, .learner_version = learner_version, .groups = SpareGroups()};
  batch.groups.reserve(static_cast<size_t>(groups));
  for (int64_t i = 0; i < groups; ++i) {
    const uint32_t g = PopOldest();
    Hold(g, batch.sequence);
    batch.groups.push_back(store_.group(g).group_id);
  }
  std::ranges::sort(batch.groups);
  ++next_batch_;
  return batches_.emplace_back(std::move(batch));
}

void Table::UnleaseFrom(int64_t sequence) {
  while (!batches_.empty() && batches_.back().sequence >= sequence && !batches_.back().retained) {
    FB_CHECK(!batches_.back().trained, "a trained batch is not given back");
    for (const int64_t group_id : batches_.back().groups) {
      const uint32_t g = store_.FindGroup(group_id);
      if (g != kNoIndex) Unhold(g);  // not there: none of its records was found
    }
    KeepSpare(batches_.back().groups);
    batches_.pop_back();
  }
  SetNextBatch(std::min(next_batch_, std::max(sequence, committed_batch_ + 1)));
  hand_out_from_ = std::min(hand_out_from_, sequence);
}

BatchState* Table::NextToHandOut() {
  for (auto it = LowerBatch(hand_out_from_); it != batches_.end(); ++it) {
    hand_out_from_ = it->sequence;
    if (!it->handed_out && !it->trained) return &*it;
  }
  return nullptr;
}

const BatchState* Table::FindBatch(int64_t sequence) const {
  const auto it = LowerBatch(sequence);
  return it == batches_.end() || it->sequence != sequence ? nullptr : &*it;
}

Status Table::MarkTrained(int64_t sequence) {
  const auto it = LowerBatch(sequence);
  if (it == batches_.end() || it->sequence != sequence) {
    if (sequence > 0 && sequence <= committed_batch_) return OkStatus();
    return NotFound(fmt::format("batch {} is not leased", sequence));
  }
  if (it->trained) return OkStatus();
  it->trained = true;
  const int64_t members = std::ssize(it->groups) * group_size();
  ledger_.pending -= members;
  ledger_.trained += members;
  return OkStatus();
}

Status Table::Commit(int64_t sequence) {
  if (sequence >= next_batch_) {
    return FailedPrecondition(
        fmt::format("batch {} was never leased: the last one is {}", sequence, next_batch_ - 1));
  }
  for (auto it = LowerBatch(committed_batch_ + 1); it != batches_.end() && it->sequence <= sequence;
       ++it) {
    FB_RETURN_IF_ERROR(MarkTrained(it->sequence));
    it->retained = true;
    for (const int64_t group_id : it->groups) {
      const uint32_t g = store_.FindGroup(group_id);
      Group& group = store_.group(g);
      group.flags = group.flags | Group::kRetained;
      finished_.Insert(group_id);
      for (uint32_t i = 0; i < store_.group_size(); ++i) {
        store_.slot(store_.FirstSlot(g) + i).state = SlotState::kRetained;
      }
    }
  }
  committed_batch_ = std::max(committed_batch_, sequence);
  return OkStatus();
}

void Table::Release(int64_t sequence) {
  while (!batches_.empty() && batches_.front().sequence <= sequence && batches_.front().retained) {
    for (const int64_t group_id : batches_.front().groups) LetGo(store_.FindGroup(group_id));
    KeepSpare(batches_.front().groups);
    batches_.pop_front();
  }
  released_batch_ = std::max(released_batch_, std::min(sequence, committed_batch_));
}

Result<int64_t> Table::Uncommit(int64_t to) {
  if (to >= committed_batch_) return int64_t{0};
  const auto first = LowerBatch(to + 1), end = LowerBatch(committed_batch_ + 1);
  if (to < 0 || end - first != committed_batch_ - to) {
    return FailedPrecondition(
        fmt::format("batches {} to {} cannot be taken back: {} of them are still there", to + 1,
                    committed_batch_, end - first));
  }
  for (auto it = first; it != end; ++it) {
    it->trained = it->retained = it->handed_out = false;
    it->replay = true;
    const int64_t members = std::ssize(it->groups) * group_size();
    ledger_.pending += members;
    ledger_.trained -= members;
    for (const int64_t group_id : it->groups) {
      const uint32_t g = store_.FindGroup(group_id);
      Group& group = store_.group(g);
      group.flags = group.flags & ~Group::kRetained;
      finished_.Erase(group_id);
      for (uint32_t i = 0; i < store_.group_size(); ++i) {
        store_.slot(store_.FirstSlot(g) + i).state = SlotState::kPending;
      }
    }
  }
  const int64_t back = committed_batch_ - to;
  SetCommitted(to);
  hand_out_from_ = std::min(hand_out_from_, to);
  return back;
}

// Numbers of batches that are still there are not given again.
void Table::SetNextBatch(int64_t sequence) {
  next_batch_ = batches_.empty() ? sequence : std::max(sequence, batches_.back().sequence + 1);
}

void Table::SetCommitted(int64_t sequence) {
  committed_batch_ = sequence;
  released_batch_ = std::min(released_batch_, sequence);
}

Status Table::ReplayLease(int64_t sequence, int64_t learner_version,
                          const std::vector<int64_t>& ids) {
  if (sequence <= committed_batch_) {
    return FailedPrecondition(
        fmt::format("batch {} is committed: it is not leased again", sequence));
  }
  UnleaseFrom(sequence);
  if (!batches_.empty() && batches_.back().sequence >= sequence) {
    return FailedPrecondition(
        fmt::format("batch {} is retained: it is not leased again", sequence));
  }
  std::vector<int64_t> distinct = ids;
  std::ranges::sort(distinct);
  distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
  std::vector<int64_t> groups;  // one for each member that was found
  for (const int64_t id : distinct) {
    const uint32_t s = store_.FindSlot(id);
    if (s == kNoIndex) continue;
    const Group& group = store_.group(store_.GroupOfSlot(s));
    if (IsReady(group)) groups.push_back(group.group_id);
  }
  const size_t found = groups.size();
  std::ranges::sort(groups);
  groups.erase(std::ranges::unique(groups).begin(), groups.end());
  if (found == 0 || found != ids.size() || found != groups.size() * store_.group_size()) {
    return FailedPrecondition(
        fmt::format("batch {} has {} trajectories of which {} are pending in whole groups",
                    sequence, ids.size(), found));
  }
  for (const int64_t group_id : groups) Hold(store_.FindGroup(group_id), sequence);
  batches_.push_back({.sequence = sequence,
                      .learner_version = learner_version,
                      .groups = std::move(groups),
                      .handed_out = true});
  next_batch_ = sequence + 1;
  return OkStatus();
}

bool Table::Consume(int64_t group_id) {
  const uint32_t g = store_.FindGroup(group_id);
  if (g == kNoIndex || store_.group(g).holder != 0 ||
      (store_.group(g).flags & Group::kRetained) != 0) {
    return false;
  }
  for (uint32_t i = 0; i < store_.group_size(); ++i) {
    const uint32_t s = store_.FirstSlot(g) + i;
    if (store_.slot(s).state == SlotState::kVacant) continue;
    Vacate(s);
    ++ledger_.trained;
  }
  FinishGroup(g);
  return true;
}

void Table::MarkReplays() {
  for (BatchState& batch : batches_) {
    if (batch.retained) continue;
    batch.replay = true;
    batch.handed_out = false;
  }
  hand_out_from_ = 0;
}

}  // namespace forebay::buffer
