// Goal: the report has every field of the contract, null where nothing was measured, and its
// ratios compare what they name, by medians.
#include "bench/buffer_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/buffer_payload.h"
#include "bench/buffer_raw.h"
#include "bench/buffer_runner.h"

namespace forebay::bench {
namespace {

using nlohmann::ordered_json;

const std::vector<Contender>& Peers() {
  static const std::vector<Contender> peers = {
      {.name = "moodycamel", .promise = Promise::kNothing},
      {.name = "rocksdb_sync", .promise = Promise::kPowerLoss},
      {.name = "lmdb_sync", .promise = Promise::kPowerLoss},
      {.name = "redis_always", .served = true, .promise = Promise::kPowerLoss},
      {.name = "nats_always", .served = true, .promise = Promise::kPowerLoss},
      {.name = "redis_everysec", .served = true, .promise = Promise::kKill},
      {.name = "reverb", .served = true, .absent = "Reverb is not installed"}};
  return peers;
}

WindowResult Result(double appends, double p50 = 1, double p99 = 2, double p999 = 3) {
  return {.appends_per_s = appends,
          .bytes_per_s = appends * 16384,
          .sampled_per_s = appends,
          .insert = {.p50_us = p50, .p99_us = p99, .p999_us = p999, .count = 9},
          .sample = {.p50_us = 10 * p50, .p99_us = 20, .p999_us = 30, .count = 9}};
}

TEST(BufferReport, NothingMeasuredIsNullNotAbsent) {
  const ordered_json fields = BufferReport().Fields({}, Peers());
  for (const char* durability : {"memory", "os", "sync"}) {
    for (const char* writers : {"w1", "w8", "w64"}) {
      for (const char* figure :
           {"appends_per_s", "p50_us", "p99_us", "p999_us", "sample_p50_us", "sample_p999_us"}) {
        EXPECT_TRUE(fields.at("in_process").at(durability).at(writers).at(figure).is_null());
        if (std::string(durability) == "memory") continue;
        EXPECT_TRUE(fields.at("served").at(durability).at(writers).at(figure).is_null());
      }
    }
  }
  for (const char* ratio :
       {"raw_fraction", "vs_rocksdb_sync", "vs_lmdb", "vs_sqlite", "os_vs_moodycamel",
        "memory_vs_moodycamel", "served_vs_reverb", "served_vs_redis_always",
        "served_vs_nats_always", "served_os_vs_reverb", "served_os_vs_redis_everysec",
        "sync_w1_p50_vs_raw", "sync_w1_p99_vs_raw", "sample_p50_vs_reverb"}) {
    ASSERT_TRUE(fields.contains(ratio)) << ratio;
    EXPECT_TRUE(fields.at(ratio).is_null()) << ratio;
  }
  for (const char* readers : {"r1", "r2", "r4"}) {
    EXPECT_TRUE(fields.at("readers").at(readers).at("appends_per_s").is_null());
  }
  EXPECT_TRUE(fields.at("peers").at("reverb").at("w64").at("p50_us").is_null());
  EXPECT_EQ(fields.at("absent").at("reverb"), "Reverb is not installed");
  EXPECT_EQ(fields.at("absent").size(), 1U);
}

TEST(BufferReport, RatiosAreOfMediansAtTheirLoads) {
  BufferReport report;
  const auto add = [&](const std::string& name, int writers, const WindowResult& result) {
    report.Add({.contender = name, .writers = writers}, result);
  };
  // The medians are 1000 and 100; a wild repeat on either side changes nothing.
  for (const double appends : {1000.0, 5.0, 1001.0}) {
    add("in_process.sync", 64, Result(appends));
  }
  for (const double appends : {100.0, 99.0, 9000.0}) {
    add("rocksdb_sync", 64, Result(appends));
  }
  add("rocksdb_sync", 1, Result(7));  // another load
  add("in_process.sync", 1, Result(50, 90, 300));
  add("served.sync", 64, Result(400, 2, 4, 60));
  add("served.os", 64, Result(800, 2, 4, 10));
  add("redis_always", 64, Result(80, 2, 4, 120));
  add("nats_always", 64, Result(20, 2, 4, 100));
  add("redis_everysec", 64, Result(200, 2, 4, 40));
  add("reverb", 64, Result(100, 14, 15, 16));
  report.Add(RawLimits{.bytes_per_s = 32768000, .write_16k = {.p50_us = 75, .p99_us = 150}});
  const ordered_json fields = report.Fields({}, Peers());
  EXPECT_DOUBLE_EQ(fields.at("vs_rocksdb_sync"), 10);
  EXPECT_TRUE(fields.at("vs_lmdb").is_null());
  EXPECT_DOUBLE_EQ(fields.at("raw_fraction"), 0.5);
  EXPECT_DOUBLE_EQ(fields.at("sync_w1_p50_vs_raw"), 1.2);
  EXPECT_DOUBLE_EQ(fields.at("sync_w1_p99_vs_raw"), 2);
  EXPECT_DOUBLE_EQ(fields.at("served_vs_redis_always"), 5);
  EXPECT_DOUBLE_EQ(fields.at("served_vs_nats_always"), 20);
  EXPECT_DOUBLE_EQ(fields.at("served_os_vs_redis_everysec"), 4);
  EXPECT_DOUBLE_EQ(fields.at("served_vs_reverb"), 4);
  EXPECT_DOUBLE_EQ(fields.at("sample_p50_vs_reverb"), 20.0 / 140);
  EXPECT_DOUBLE_EQ(fields.at("served_p999_vs_best_peer"), 0.6);  // NATS is the better one
  EXPECT_DOUBLE_EQ(fields.at("served_os_p999_vs_best_peer"), 0.25);
  // Of the best windows: 1001 against 9000.
  EXPECT_DOUBLE_EQ(fields.at("of_best_windows").at("vs_rocksdb_sync"), 1001.0 / 9000);
  EXPECT_DOUBLE_EQ(fields.at("of_best_windows").at("sync_w1_p50_vs_raw"), 1.2);
  const ordered_json& load = fields.at("in_process").at("sync").at("w64");
  EXPECT_EQ(load.at("appends_per_s"), 1000);
  EXPECT_EQ(load.at("spread").at("appends_per_s").at("min"), 5);
  EXPECT_EQ(load.at("spread").at("appends_per_s").at("repeats"), 3);
  EXPECT_EQ(fields.at("peers").at("redis_always").at("acknowledged_survives"), "power loss");
}

TEST(BufferReport, AWindowWithoutASampleHasNone) {
  BufferReport report;
  WindowResult without = Result(10);
  without.sample = {};
  report.Add({.contender = "lmdb_sync", .writers = 64}, without);
  report.Add({.contender = "redis_always", .writers = 64}, without);
  report.Add({.contender = "redis_always", .writers = 64}, Result(10, 5));
  const ordered_json fields = report.Fields({}, Peers());
  const ordered_json& peers = fields.at("peers");
  EXPECT_TRUE(peers.at("lmdb_sync").at("w64").at("sample_p50_us").is_null());
  EXPECT_TRUE(peers.at("lmdb_sync").at("w64").at("spread").at("sample_p50_us").is_null());
  EXPECT_EQ(peers.at("redis_always").at("w64").at("sample_p50_us"), 50);
  EXPECT_EQ(peers.at("redis_always").at("w64").at("spread").at("sample_p50_us").at("repeats"), 1);
}

TEST(BufferReport, ReadersAndMixAreLoadsOfTheirOwn) {
  BufferReport report;
  report.Add({.contender = "in_process.sync", .writers = 64}, Result(10));
  report.Add({.contender = "in_process.sync", .writers = 64, .readers = 4}, Result(12));
  report.Add({.contender = "in_process.sync", .writers = 8, .sizes = RecordSizes::kMix}, Result(3));
  const ordered_json fields = report.Fields({}, Peers());
  EXPECT_EQ(fields.at("readers").at("r1").at("appends_per_s"), 10);
  EXPECT_TRUE(fields.at("readers").at("r2").at("appends_per_s").is_null());
  EXPECT_EQ(fields.at("readers").at("r4").at("appends_per_s"), 12);
  EXPECT_EQ(fields.at("mix").at("in_process").at("sync").at("w8").at("appends_per_s"), 3);
  EXPECT_TRUE(fields.at("in_process").at("sync").at("w8").at("appends_per_s").is_null());
}

}  // namespace
}  // namespace forebay::bench
