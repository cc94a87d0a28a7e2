// SlotTable: whose cached prefix serves whom, and that nothing outlives the weights that made it.
#include "forebay/rollout/engine/slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "forebay/base/rng.h"

namespace forebay::rollout {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Range(int32_t begin, int32_t end) {
  Tokens out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

// What the engine does with the next prefill: copies what it can, prefills the rest. Returns the
// slot.
int64_t PrefillNext(SlotTable* table) {
  const int64_t slot = table->NextPrefill();
  EXPECT_GE(slot, 0);
  if (const auto source = table->FindSource(slot)) table->Copied(slot, *source);
  table->StartPrefill(slot);
  if (table->slot(slot).phase == SlotPhase::kPrefill) {
    table->Prefilled(slot, table->slot(slot).prompt - 1);
  }
  EXPECT_EQ(table->slot(slot).phase, SlotPhase::kDecode);
  return slot;
}

TEST(SlotTableTest, OnePrefillServesAGroup) {
  SlotTable table({.slots = 4});
  const Tokens prompt = Range(0, 10);
  for (int i = 0; i < 4; ++i) table.Admit(prompt);
  EXPECT_FALSE(table.HasFree());
  EXPECT_EQ(table.slot(PrefillNext(&table)).reused, 0);
  for (int i = 1; i < 4; ++i) {
    const int64_t slot = PrefillNext(&table);
    EXPECT_EQ(table.slot(slot).reused, 9) << "all but the last token";
    EXPECT_EQ(table.slot(slot).cached, 9);
  }
  EXPECT_EQ(table.NextPrefill(), -1);
  EXPECT_EQ(table.Count(SlotPhase::kDecode), 4);
}

TEST(SlotTableTest, TheNextTurnFindsItsOwnSlot) {
  SlotTable table({.slots = 3});
  Tokens first = Range(0, 5), other = Range(50, 56);
  table.Admit(first);
  const int64_t slot = PrefillNext(&table);
  table.Admit(other);
  const int64_t other_slot = PrefillNext(&table);
  for (const int32_t token : {7, 8, 9}) table.Sampled(slot, token);
  table.Release(slot);
  table.Release(other_slot);

  // The episode goes on: prompt, sampled, observation. The last sampled token has no entry yet.
  Tokens next = {0, 1, 2, 3, 4, 7, 8, 9, 20, 21};
  EXPECT_EQ(table.Admit(next), slot);
  EXPECT_FALSE(table.FindSource(slot).has_value());
  table.StartPrefill(slot);
  EXPECT_EQ(table.slot(slot).reused, 7);
}

TEST(SlotTableTest, APromptThatDivergesCopiesThePartThatIsEqual) {
  SlotTable table({.slots = 2});
  table.Admit(Range(0, 10));
  const int64_t source_slot = PrefillNext(&table);
  Tokens branch = Range(0, 6);
  branch.insert(branch.end(), {99, 98});
  const int64_t slot = table.Admit(branch);
  const auto source = table.FindSource(slot);
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(source->slot, source_slot);
  EXPECT_EQ(source->tokens, 6);
}

TEST(SlotTableTest, TakesTheSlotThatWasReleasedLongestAgo) {
  SlotTable table({.slots = 3});
  std::vector<int64_t> slots;
  for (int32_t i = 0; i < 3; ++i) {
    table.Admit({{100 * i, 100 * i + 1, 100 * i + 2}});
    slots.push_back(PrefillNext(&table));
  }
  for (const size_t i : {1, 0, 2}) table.Release(slots[i]);
  EXPECT_EQ(table.Admit({{7, 8}}), slots[1]);
  EXPECT_EQ(table.Admit({{9, 8}}), slots[0]);
}

TEST(SlotTableTest, T3_NothingIsReusedAfterNewWeights) {
  SlotTable table({.slots = 4});
  const Tokens prompt = Range(0, 10);
  table.Admit(prompt);
  const int64_t finished = PrefillNext(&table);
  table.Sampled(finished, 3);
  table.Release(finished);
  table.Admit(Range(20, 30));
  const int64_t running = PrefillNext(&table);
  table.Admit(Range(0, 11));  // takes the finished slot's entries in place, not started yet
  table.NewWeights();

  EXPECT_EQ(table.slot(PrefillNext(&table)).reused, 0);
  EXPECT_EQ(table.slot(running).cached, 9) << "a running sequence keeps its entries";
  const int64_t same = table.Admit(Range(20, 30));
  EXPECT_FALSE(table.FindSource(same).has_value()) << "entries of the old weights";
  EXPECT_EQ(table.slot(PrefillNext(&table)).reused, 0);
  table.Release(same);
  table.Release(running);
  table.Admit(Range(20, 32));
  EXPECT_EQ(table.slot(PrefillNext(&table)).reused, 9) << "entries of the new weights";
}

TEST(SlotTableTest, ASequenceThatRanOverNewWeightsServesNobody) {
  SlotTable table({.slots = 2});
  table.Admit(Range(0, 10));
  const int64_t slot = PrefillNext(&table);
  table.NewWeights();
  table.Sampled(slot, 1);
  table.Release(slot);
  table.Admit(Range(0, 10));
  EXPECT_EQ(table.slot(PrefillNext(&table)).reused, 0);
}

TEST(SlotTableTest, ExactBlocksReuseOnlyWholePrefilledBlocks) {
  SlotTable table({.slots = 2, .exact_block = 4});
  table.Admit(Range(0, 11));  // prefills 10: two whole blocks
  const int64_t first = PrefillNext(&table);
  for (int32_t token = 11; token < 20; ++token) table.Sampled(first, token);
  const int64_t slot = table.Admit(Range(0, 18));
  const auto source = table.FindSource(slot);
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(source->tokens, 8) << "decoded entries and the cut block are made again";
}

TEST(SlotTableTest, OneTokenPromptsNeedNoPrefill) {
  SlotTable table({.slots = 1});
  const int64_t slot = table.Admit({{5}});
  table.StartPrefill(slot);
  EXPECT_EQ(table.slot(slot).phase, SlotPhase::kDecode);
}

TEST(SlotTableTest, ARequestThatEndsInItsPrefillLeavesWhatIsCached) {
  SlotTable table({.slots = 1});
  const int64_t slot = table.Admit(Range(0, 100));
  table.StartPrefill(slot);
  table.Prefilled(slot, 32);
  table.Release(slot);
  table.Admit(Range(0, 50));
  table.StartPrefill(slot);
  EXPECT_EQ(table.slot(slot).reused, 32);
}

// Whatever happens, what a slot calls cached is what was written for exactly these tokens by the
// current weights. A model of the cache remembers which (token, version) stands at each place.
TEST(SlotTableTest, RandomOperationsNeverReuseWrongEntries) {
  struct Entry {
    int32_t token;
    int64_t version;
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    SlotTable table({.slots = 3, .exact_block = seed % 2 == 0 ? 0 : 4});
    std::vector<std::vector<Entry>> cache(3);
    int64_t version = 0;
    const auto write = [&](int64_t slot, int64_t begin, int64_t end) {
      auto& row = cache[static_cast<size_t>(slot)];
      if (static_cast<int64_t>(row.size()) < end) row.resize(static_cast<size_t>(end), {-1, -1});
      for (int64_t i = begin; i < end; ++i) {
        row[static_cast<size_t>(i)] = {table.slot(slot).tokens[static_cast<size_t>(i)], version};
      }
    };
    for (int step = 0; step < 2000; ++step) {
      const auto slot = static_cast<int64_t>(rng.Below(3));
      switch (rng.Below(6)) {
        case 0:
          if (!table.HasFree()) break;
          {
            Tokens prompt;
            const uint64_t length = 1 + rng.Below(12);
            for (uint64_t i = 0; i < length; ++i)
              prompt.push_back(static_cast<int32_t>(rng.Below(2)));
            table.Admit(prompt);
          }
          break;
        case 1: {
          const int64_t next = table.NextPrefill();
          if (next < 0) break;
          if (!table.slot(next).started) {
            if (const auto source = table.FindSource(next)) {
              cache[static_cast<size_t>(next)] = cache[static_cast<size_t>(source->slot)];
              table.Copied(next, *source);
            }
            table.StartPrefill(next);
            for (int64_t i = 0; i < table.slot(next).reused; ++i) {
              const Entry entry = cache[static_cast<size_t>(next)][static_cast<size_t>(i)];
              ASSERT_EQ(entry.token, table.slot(next).tokens[static_cast<size_t>(i)]);
              ASSERT_EQ(entry.version, version);
            }
          } else {
            const int64_t end = std::min(table.slot(next).cached + 4, table.slot(next).prompt - 1);
            write(next, table.slot(next).cached, end);
            table.Prefilled(next, end);
          }
          break;
        }
        case 2:
        case 3:
          if (table.slot(slot).phase != SlotPhase::kDecode) break;
          write(slot, table.slot(slot).cached, table.slot(slot).cached + 1);
          table.Sampled(slot, static_cast<int32_t>(rng.Below(2)));
          break;
        case 4:
          if (table.slot(slot).phase != SlotPhase::kFree) table.Release(slot);
          break;
        default:
          if (rng.Below(10) != 0) break;
          ++version;
          table.NewWeights();
      }
    }
  }
}

}  // namespace
}  // namespace forebay::rollout
