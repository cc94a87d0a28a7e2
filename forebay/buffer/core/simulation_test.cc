// Hundreds of crash schedules. A failing one is named by its seed.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "forebay/buffer/core/simulation_testing.h"

namespace forebay::buffer {
namespace {

uint64_t Asked(const char* name, uint64_t otherwise) {
  const char* asked = std::getenv(name);
  return asked == nullptr ? otherwise : std::strtoull(asked, nullptr, 10);
}

TEST(Simulation, PromisesHoldOverHundredsOfSchedules) {
  SimulationCounts counts;
  // FOREBAY_SIMULATION_SEEDS=20000 for a soak.
  const uint64_t first = Asked("FOREBAY_SIMULATION_FIRST", 1);
  const uint64_t seeds = Asked("FOREBAY_SIMULATION_SEEDS", 400);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed);
    simulation.Run();
    if (testing::Test::HasFailure()) return;
    counts.Add(simulation.counts());
  }
  std::printf("%s\n", counts.ToString().c_str());
  if (seeds < 400) return;
  // Only where a start found a disk too full for the reserve of notes.
  EXPECT_LE(counts.full, static_cast<int64_t>(seeds / 1000));
  // The schedules reach what they are for.
  EXPECT_GT(counts.acknowledged, 20000);
  EXPECT_GT(counts.replays, 100);
  EXPECT_GT(counts.taken, 100);
  EXPECT_GT(counts.expired, 10);
  EXPECT_GT(counts.duplicates, 100);
  EXPECT_GT(counts.uncommitted, 20);
  EXPECT_GT(counts.faults, 500);
  EXPECT_GT(counts.crashes, 500);
  EXPECT_GT(counts.crashes_in_open, 20);
  EXPECT_GT(counts.flips, 100);
  EXPECT_GT(counts.drained, 100);
}

}  // namespace
}  // namespace forebay::buffer
