#include "forebay/rollout/engine/slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "forebay/base/check.h"

namespace forebay::rollout {

SlotTable::SlotTable(const SlotTableOptions& options)
    : exact_block_(options.exact_block), slots_(static_cast<size_t>(options.slots)) {
  FB_CHECK(options.slots > 0, "an engine needs a slot");
}

bool SlotTable::HasFree() const { return Count(SlotPhase::kFree) > 0; }

int64_t SlotTable::Count(SlotPhase phase) const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [phase](const Slot& slot) { return slot.phase == phase; });
}

int64_t SlotTable::Usable(const Slot& slot, std::span<const int32_t> prompt) const {
  if (!slot.one_version) return 0;
  const int64_t held = exact_block_ > 0 ? std::min(slot.cached, slot.prefilled) : slot.cached;
  const int64_t limit = std::min(held, static_cast<int64_t>(prompt.size()) - 1);
  const auto end = std::mismatch(prompt.begin(), prompt.begin() + limit, slot.tokens.begin()).first;
  const int64_t common = end - prompt.begin();
  return exact_block_ > 0 ? common / exact_block_ * exact_block_ : common;
}

int64_t SlotTable::Admit(std::span<const int32_t> prompt) {
  FB_CHECK(!prompt.empty(), "a prompt has a token");
  int64_t oldest = -1;
  int64_t whole = -1;  // nothing of its entries is lost by taking it
  for (int64_t i = 0; i < size(); ++i) {
    const Slot& candidate = slot(i);
    if (candidate.phase != SlotPhase::kFree) continue;
    if (oldest < 0 || candidate.order < slot(oldest).order) oldest = i;
    if (candidate.cached > 0 && Usable(candidate, prompt) == candidate.cached &&
        (whole < 0 || candidate.cached > slot(whole).cached)) {
      whole = i;
    }
  }
  const int64_t index = whole >= 0 ? whole : oldest;
  FB_CHECK(index >= 0, "Admit needs a free slot");
  Slot& taken = at(index);
  taken.cached = Usable(taken, prompt);
  taken.prefilled = std::min(taken.prefilled, taken.cached);
  taken.phase = SlotPhase::kPrefill;
  taken.tokens.assign(prompt.begin(), prompt.end());
  taken.prompt = static_cast<int64_t>(prompt.size());
  taken.reused = 0;
  taken.started = false;
  taken.one_version = true;
  taken.order = next_order_++;
  return index;
}

int64_t SlotTable::NextPrefill() const {
  int64_t next = -1;
  for (int64_t i = 0; i < size(); ++i) {
    if (slot(i).phase != SlotPhase::kPrefill) continue;
    if (next < 0 || slot(i).order < slot(next).order) next = i;
  }
  return next;
}

std::optional<SlotTable::Source> SlotTable::FindSource(int64_t index) const {
  const Slot& wanting = slot(index);
  Source best{.slot = -1, .tokens = wanting.cached};
  for (int64_t i = 0; i < size(); ++i) {
    if (i == index) continue;
    const int64_t usable = Usable(slot(i), wanting.tokens);
    if (usable > best.tokens) best = {.slot = i, .tokens = usable};
  }
  if (best.slot < 0) return std::nullopt;
  return best;
}

void SlotTable::Copied(int64_t index, const Source& source) {
  Slot& to = at(index);
  FB_CHECK(!to.started && source.tokens < to.prompt, "a copy comes before the prefill");
  to.cached = source.tokens;
  to.prefilled = std::min(source.tokens, slot(source.slot).prefilled);
}

void SlotTable::StartPrefill(int64_t index) {
  Slot& starting = at(index);
  FB_CHECK(starting.phase == SlotPhase::kPrefill && !starting.started, "a prefill starts once");
  starting.started = true;
  starting.reused = starting.cached;
  if (starting.cached == starting.prompt - 1) starting.phase = SlotPhase::kDecode;
}

void SlotTable::Prefilled(int64_t index, int64_t end) {
  Slot& prefilled = at(index);
  FB_CHECK(prefilled.started && end > prefilled.cached && end < prefilled.prompt,
           "a prefill goes forward and leaves the last token");
  if (prefilled.prefilled == prefilled.cached) prefilled.prefilled = end;
  prefilled.cached = end;
  if (prefilled.cached == prefilled.prompt - 1) prefilled.phase = SlotPhase::kDecode;
}

void SlotTable::Sampled(int64_t index, int32_t token) {
  Slot& sampled = at(index);
  FB_CHECK(sampled.phase == SlotPhase::kDecode, "only decoding slots sample");
  ++sampled.cached;
  sampled.tokens.push_back(token);
}

void SlotTable::Release(int64_t index) {
  Slot& released = at(index);
  FB_CHECK(released.phase != SlotPhase::kFree, "released twice");
  released.phase = SlotPhase::kFree;
  released.order = next_order_++;
  released.tokens.resize(static_cast<size_t>(released.cached));
  if (!released.one_version) {
    // Nobody can use these entries: let this slot be taken first.
    released = Slot{};
  }
}

void SlotTable::Cleared(int64_t index) {
  FB_CHECK(slot(index).phase == SlotPhase::kFree, "a busy slot needs its entries");
  at(index) = Slot{};
}

void SlotTable::NewWeights() {
  for (Slot& slot : slots_) {
    if (slot.phase == SlotPhase::kFree) {
      slot = Slot{};
    } else if (slot.phase == SlotPhase::kPrefill && !slot.started) {
      slot.cached = 0;
      slot.prefilled = 0;
    } else {
      slot.one_version = false;
    }
  }
}

}  // namespace forebay::rollout
