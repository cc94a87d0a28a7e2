// The buffer against its peers and the disk, all in one run: every round measures every cell (one
// contender under one load) in a short window, every other round backwards, so that drift of the
// machine meets all of them alike.
//
// One reader copies every record out of every engine. What an acknowledgement promises differs and
// is reported; the ratios compare like promises. Servers run as children of this process on
// loopback and Unix sockets, their data beside ours on one disk.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/buffer_engine.h"
#include "bench/buffer_engine_forebay.h"
#include "bench/buffer_payload.h"
#include "bench/buffer_raw.h"
#include "bench/buffer_report.h"
#include "bench/buffer_runner.h"
#include "bench/buffer_scratch.h"
#include "bench/harness.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::bench {
namespace {

struct Plan {
  int repeats = 5;
  double warmup_s = 0.3, seconds = 1.0;
};
constexpr Plan kFull;
// 16 cells, 3 rounds: what the ratios need, within a minute.
constexpr Plan kQuick = {.repeats = 3, .warmup_s = 0.15, .seconds = 0.4};

struct Entrant {
  Contender about;
  bool in_quick = true;
  std::function<Result<std::unique_ptr<Engine>>()> make;
  std::unique_ptr<Engine> engine;
};

std::vector<Entrant> OurEntrants(const std::string& folder) {
  using buffer::Durability;
  std::vector<Entrant> entrants;
  const auto in_process = [&](const char* name, Promise promise, Durability durability) {
    entrants.push_back({.about = {.name = std::string("in_process.") + name, .promise = promise},
                        .make = [=] { return MakeForebay(folder + "/" + name, durability); }});
  };
  in_process("memory", Promise::kNothing, Durability::kMemory);
  in_process("os", Promise::kKill, Durability::kOs);
  in_process("sync", Promise::kPowerLoss, Durability::kSync);
  const auto served = [&](const char* name, Promise promise, Durability durability) {
    entrants.push_back(
        {.about = {.name = std::string("served.") + name, .served = true, .promise = promise},
         .make = [=] { return MakeServedForebay(folder + "/served_" + name, durability); }});
  };
  served("os", Promise::kKill, Durability::kOs);
  served("sync", Promise::kPowerLoss, Durability::kSync);
  return entrants;
}

std::vector<Entrant> PeerEntrants(const PeerOptions& options) {
  std::vector<Entrant> entrants;
  const auto add = [&](const Contender& about, auto make, bool in_quick = true) {
    entrants.push_back({.about = about, .in_quick = in_quick, .make = std::move(make)});
  };
  add({.name = "moodycamel", .promise = Promise::kNothing},
      [=] { return MakeMoodycamel(options); });
  add({.name = "rocksdb_sync", .promise = Promise::kPowerLoss},
      [=] { return MakeRocksDb(options, true); });
  add(
      {.name = "rocksdb_nosync", .promise = Promise::kKill},
      [=] { return MakeRocksDb(options, false); }, false);
  add({.name = "lmdb_sync", .promise = Promise::kPowerLoss}, [=] { return MakeLmdb(options); });
  add({.name = "sqlite_full", .promise = Promise::kPowerLoss}, [=] { return MakeSqlite(options); });
  add({.name = "redis_always", .served = true, .promise = Promise::kPowerLoss},
      [=] { return MakeRedis(options, true); });
  add({.name = "redis_everysec", .served = true, .promise = Promise::kKill},
      [=] { return MakeRedis(options, false); });
  add({.name = "nats_always", .served = true, .promise = Promise::kPowerLoss},
      [=] { return MakeNats(options, true); });
  add(
      {.name = "nats_default", .served = true, .promise = Promise::kKill},
      [=] { return MakeNats(options, false); }, false);
  add({.name = "reverb", .served = true, .promise = Promise::kNothing},
      [=] { return MakeReverb(options); });
  return entrants;
}

// Starts what can be started; says what cannot.
void StartAll(std::vector<Entrant>& entrants, const BenchOptions& options) {
  for (Entrant& entrant : entrants) {
    if (options.quick && !entrant.in_quick) {
      entrant.about.absent = "not measured with --quick";
      continue;
    }
    if (entrant.about.name.find(options.only) == std::string::npos) {
      entrant.about.absent = "left out by --only";
      continue;
    }
    auto engine = entrant.make();
    if (engine.ok()) {
      entrant.engine = std::move(*engine);
      entrant.about.description = entrant.engine->Description();
      continue;
    }
    entrant.about.absent = engine.status().message();
    options.Say(fmt::format("{}: {}", entrant.about.name, entrant.about.absent));
  }
}

std::vector<Cell> CellsOf(const Entrant& entrant, bool ours, bool quick) {
  const std::string& name = entrant.about.name;
  std::vector<Cell> cells = {{.contender = name, .writers = 64}};
  const bool one_writer = name == "in_process.sync";
  if (!quick || one_writer) cells.push_back({.contender = name, .writers = 1});
  if (!quick) {
    cells.push_back({.contender = name, .writers = 8});
    cells.push_back({.contender = name, .writers = 8, .sizes = RecordSizes::kMix});
  }
  const bool readers = ours && (name == "in_process.sync" || (name == "in_process.os" && !quick));
  if (readers) {
    for (const int n : {2, 4}) {
      cells.push_back({.contender = name, .writers = 64, .readers = n});
    }
  }
  return cells;
}

struct Job {
  Cell cell;
  Entrant* entrant;  // null: the disk alone
  bool ours;
};

// All cells of all entrants; like loads beside each other.
std::vector<Job> Jobs(std::vector<Entrant>& ours, std::vector<Entrant>& peers, bool quick) {
  // The disk beside the one writer that is compared with it, and beside the 64.
  std::vector<Job> jobs = {{.cell = {.writers = 1}, .entrant = nullptr, .ours = false},
                           {.cell = {.writers = 64}, .entrant = nullptr, .ours = false}};
  for (std::vector<Entrant>* entrants : {&ours, &peers}) {
    for (Entrant& entrant : *entrants) {
      if (entrant.engine == nullptr) continue;
      for (Cell& cell : CellsOf(entrant, entrants == &ours, quick)) {
        jobs.push_back({std::move(cell), &entrant, entrants == &ours});
      }
    }
  }
  std::ranges::stable_sort(jobs, [](const Job& a, const Job& b) {
    if (a.cell.sizes != b.cell.sizes) return a.cell.sizes < b.cell.sizes;
    return a.cell.writers < b.cell.writers;
  });
  return jobs;
}

Status Measure(const Job& job, const Plan& plan, RawDisk& disk, const BenchOptions& options,
               BufferReport& report) {
  if (job.entrant == nullptr) {
    FB_ASSIGN_OR_RETURN(const RawLimits limits, disk.Measure(plan.seconds));
    report.Add(limits);
    return OkStatus();
  }
  if (job.entrant->engine == nullptr) return OkStatus();  // failed in an earlier window
  const auto window = RunWindow(*job.entrant->engine, {.writers = job.cell.writers,
                                                       .readers = job.cell.readers,
                                                       .sizes = job.cell.sizes,
                                                       .warmup_s = plan.warmup_s,
                                                       .seconds = plan.seconds});
  if (window.ok()) {
    report.Add(job.cell, *window);
    return OkStatus();
  }
  Status failed = window.status().WithContext(
      fmt::format("{}, {} writers", job.entrant->about.name, job.cell.writers));
  if (job.ours) return failed;
  // A peer that fails is not measured further; what it did until then stands.
  job.entrant->about.absent = failed.message();
  job.entrant->engine.reset();
  options.Say(failed.message());
  return OkStatus();
}

std::vector<Contender> About(const std::vector<Entrant>& entrants) {
  std::vector<Contender> contenders;
  contenders.reserve(entrants.size());
  for (const Entrant& entrant : entrants) contenders.push_back(entrant.about);
  return contenders;
}

}  // namespace

Result<nlohmann::ordered_json> BufferBench(const BenchOptions& options) {
  const Plan& plan = options.quick ? kQuick : kFull;
  FB_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Create());
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<RawDisk> disk, RawDisk::Create(scratch.path()));
  std::vector<Entrant> ours = OurEntrants(scratch.path());
  std::vector<Entrant> peers = PeerEntrants(
      {.folder = scratch.path(), .peers_folder = std::string(FOREBAY_SOURCE_DIR) + "/.deps/peers"});
  StartAll(ours, options);
  StartAll(peers, options);

  BufferReport report;
  std::vector<Job> jobs = Jobs(ours, peers, options.quick);
  for (int round = 0; round < plan.repeats; ++round) {
    options.Say(fmt::format("round {} of {}: {} windows of {} s", round + 1, plan.repeats,
                            jobs.size(), plan.seconds));
    for (const Job& job : jobs) {
      FB_RETURN_IF_ERROR(Measure(job, plan, *disk, options, report));
    }
    std::ranges::reverse(jobs);
  }
  nlohmann::ordered_json fields = report.Fields(About(ours), About(peers));
  fields["window_s"] = plan.seconds;
  fields["repeats"] = plan.repeats;
  fields["load_average"] = LoadAverage();
  return fields;
}

}  // namespace forebay::bench
