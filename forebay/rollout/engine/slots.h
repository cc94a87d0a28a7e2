// SlotTable: which tokens each row of the key/value cache holds, and whose prefix can serve whom.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace forebay::rollout {

enum class SlotPhase {
  kFree,     // no request; its entries may still serve as a prefix
  kPrefill,  // its prompt is not all in the cache
  kDecode,   // the cache holds all of tokens but the last, which the next decode step runs
};

struct Slot {
  SlotPhase phase = SlotPhase::kFree;
  std::vector<int32_t> tokens;  // prompt, then what was sampled
  int64_t prompt = 0;           // tokens of the prompt
  int64_t cached = 0;           // tokens[0, cached) have their entries in the cache
  int64_t prefilled = 0;        // the leading part of `cached` that a prefill program wrote
  int64_t reused = 0;           // prompt tokens that were cached before its prefill began
  bool started = false;         // its prefill has begun
  bool one_version = true;      // all its entries are of the current weights
  uint64_t order = 0;           // of admission while busy, of release while free
};

struct SlotTableOptions {
  int64_t slots = 16;
  // 0: any prefix is reused. > 0: only whole blocks of that many tokens, and only entries that a
  // prefill program wrote, so that an entry's bits do not depend on what was reused.
  int64_t exact_block = 0;
};

// Pure bookkeeping: no device, no clock. Not thread-safe. The last token of a prompt is never
// prefilled nor reused: the first decode step runs it, so that every token is sampled by one
// program.
class SlotTable {
 public:
  explicit SlotTable(const SlotTableOptions& options);

  bool HasFree() const;
  // Gives `prompt` (not empty) a free slot: the one whose entries are all a prefix of it, or else
  // the one that was released longest ago. CHECKs HasFree.
  int64_t Admit(std::span<const int32_t> prompt);

  // The busy slot whose prompt is to be prefilled next: the first admitted, so that the prompt of a
  // group is complete when its second member asks for it. -1: none.
  int64_t NextPrefill() const;

  struct Source {
    int64_t slot;
    int64_t tokens;
  };
  // Another slot that holds more of this slot's prompt, under the current weights.
  std::optional<Source> FindSource(int64_t slot) const;
  // The entries of `source` were copied.
  void Copied(int64_t slot, const Source& source);
  // Prefill begins with what is cached now; a slot with nothing left to prefill goes on to decode.
  void StartPrefill(int64_t slot);
  // A prefill program has written the entries up to `end`.
  void Prefilled(int64_t slot, int64_t end);

  // A decode step ran the last token and sampled this one.
  void Sampled(int64_t slot, int32_t token);
  // The request has ended; its entries stay until the slot is taken.
  void Release(int64_t slot);
  // The entries of a free slot are gone.
  void Cleared(int64_t slot);
  // New weights: nothing that was cached before serves another request. Running slots keep their
  // own entries.
  void NewWeights();

  const Slot& slot(int64_t index) const { return slots_[static_cast<size_t>(index)]; }
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  int64_t Count(SlotPhase phase) const;

 private:
  Slot& at(int64_t index) { return slots_[static_cast<size_t>(index)]; }
  // How much of `prompt` the entries of `slot` can serve.
  int64_t Usable(const Slot& slot, std::span<const int32_t> prompt) const;

  const int64_t exact_block_;
  std::vector<Slot> slots_;
  uint64_t next_order_ = 1;
};

}  // namespace forebay::rollout
