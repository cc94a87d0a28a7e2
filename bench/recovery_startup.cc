// How long a start takes after a crash, and how much memory it needs, by the number of records.
//
// A process fills a folder and is killed in the middle of its appends; another one opens it: first
// with nothing of it in the page cache (where this user may drop that), then again.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "bench/benchmarks.h"
#include "bench/buffer_payload.h"
#include "bench/buffer_scratch.h"
#include "bench/harness.h"
#include "bench/recovery_process.h"
#include "bench/recovery_roles.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::bench {
namespace {

constexpr int64_t kRecords = 10'000'000;
constexpr int64_t kQuickRecords = 200'000;
constexpr size_t kRecordBytes = 2048;
constexpr int64_t kTakes = 64, kGroupsOfTake = 64;
// Where the codec puts trajectory_id and, after it, group_id (WriterPayloads has the same).
constexpr size_t kIdOffset = 28;

buffer::BufferOptions OptionsOf(const std::string& folder, int64_t records) {
  return {.folder = folder,
          .durability = buffer::Durability::kOs,
          .group_size = 1,
          .max_staleness = int64_t{1} << 30,
          .memory_bytes_max = int64_t{192} << 20,
          .disk_bytes_max = (int64_t{1} << 30) + records * 2400,
          .implied_dispatch = true};
}

// "VmRSS" or "VmHWM" of this process, in bytes.
int64_t MemoryOf(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

// False where this user may not.
bool DropPageCache() {
  ::sync();
  std::ofstream drop("/proc/sys/vm/drop_caches");
  drop << 3 << std::flush;
  return drop.good();
}

struct OnDisk {
  int64_t segments = 0, segment_bytes = 0, state_bytes = 0;
};

OnDisk Measure(const std::string& folder) {
  OnDisk on_disk;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const bool segment = entry.path().filename().string().starts_with("segment-");
    const auto bytes = static_cast<int64_t>(entry.file_size(error));
    if (error) continue;
    on_disk.segments += segment ? 1 : 0;
    (segment ? on_disk.segment_bytes : on_disk.state_bytes) += bytes;
  }
  return on_disk;
}

Result<nlohmann::ordered_json> MeasureOpen(const std::string& folder, int64_t records) {
  FB_ASSIGN_OR_RETURN(RoleProcess process,
                      RoleProcess::Start({"open", folder, std::to_string(records)}));
  FB_ASSIGN_OR_RETURN(const std::string line, process.ReadLine(Now() + std::chrono::seconds(600)));
  FB_RETURN_IF_ERROR(process.Kill());
  nlohmann::ordered_json fields = nlohmann::ordered_json::parse(line, nullptr, false);
  if (fields.is_discarded()) return Internal("the opened buffer reports: " + line);
  return fields;
}

[[noreturn]] void Abort(const Status& status) {
  std::fprintf(stderr, "forebay-bench: %s\n", status.message().c_str());
  std::exit(3);
}

}  // namespace

// FOLDER RECORDS: says when so many are acknowledged, and goes on.
int FillRole(int argc, char** args) {
  if (argc != 2) return 2;
  const int64_t records = std::atoll(args[1]);
  auto opened = buffer::Buffer::Open(OptionsOf(args[0], records), 0, {}, nullptr);
  if (!opened.ok()) Abort(opened.status());
  std::string encoded = EncodedTrajectory(1, kRecordBytes);
  for (int64_t id = 1;; ++id) {
    std::memcpy(encoded.data() + kIdOffset, &id, sizeof(id));
    std::memcpy(encoded.data() + kIdOffset + sizeof(id), &id, sizeof(id));
    const Status status =
        (*opened)->AppendEncodedAndWait(encoded, {.deadline = Now() + std::chrono::seconds(300)});
    if (!status.ok()) Abort(status);
    if (id == records) RoleReport("filled\n");
  }
}

// FOLDER RECORDS: opens it, takes some batches, reports.
int OpenRole(int argc, char** args) {
  if (argc != 2) return 2;
  const int64_t records = std::atoll(args[1]);
  buffer::Recovery recovery;
  const TimePoint begin = Now();
  auto opened = buffer::Buffer::Open(OptionsOf(args[0], records), 0, {}, &recovery);
  const double seconds = Seconds(Now() - begin);
  const double cpu_seconds = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  if (!opened.ok()) Abort(opened.status());
  nlohmann::ordered_json out = {{"open_seconds", seconds},
                                {"open_cpu_seconds", cpu_seconds},
                                {"rss_bytes", MemoryOf("VmRSS")},
                                {"peak_rss_bytes", MemoryOf("VmHWM")}};
  const buffer::Ledger ledger = (*opened)->ledger();
  out["pending"] = ledger.pending;
  out["ledger_balanced"] = ledger.balanced();
  out["quarantined"] = recovery.quarantined_records;
  const TimePoint take_begin = Now();
  int64_t wrong = 0;
  for (int64_t t = 0; t < kTakes; ++t) {
    auto taken = (*opened)->Take({.groups = kGroupsOfTake}, Now() + std::chrono::seconds(60));
    if (!taken.ok()) Abort(taken.status());
    for (const buffer::TrajectoryView& view : taken->trajectories) {
      const auto id = PeekId(view.encoded);
      if (!id || id->trajectory_id != view.id.trajectory_id) ++wrong;
    }
    const Status status = (*opened)->Acknowledge(taken->take_id);
    if (!status.ok()) Abort(status);
  }
  out["take_seconds"] = Seconds(Now() - take_begin);
  out["taken"] = kTakes * kGroupsOfTake;
  out["wrong"] = wrong;
  out["rss_after_takes_bytes"] = MemoryOf("VmRSS");
  out["peak_rss_after_takes_bytes"] = MemoryOf("VmHWM");
  RoleReport(out.dump() + "\n");
  while (true) ::pause();
}

Result<nlohmann::ordered_json> StartupBench(const BenchOptions& options) {
  const int64_t records =
      options.records > 0 ? options.records : (options.quick ? kQuickRecords : kRecords);
  FB_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Create());
  const std::string folder = scratch.path() + "/log";
  std::error_code error;
  const auto space = std::filesystem::space(scratch.path(), error);
  const int64_t needed = records * 2400 + (int64_t{2} << 30);
  if (!error && static_cast<int64_t>(space.available) < needed) {
    return ResourceExhausted(
        fmt::format("{} records need {} bytes of disk; {} has {}: see --records", records, needed,
                    scratch.path(), space.available));
  }
  options.Say(fmt::format("filling with {} records of {} bytes", records, kRecordBytes));
  const TimePoint begin = Now();
  {
    FB_ASSIGN_OR_RETURN(RoleProcess fill,
                        RoleProcess::Start({"fill", folder, std::to_string(records)}));
    FB_RETURN_IF_ERROR(fill.ReadLine(Now() + std::chrono::seconds(1800)).status());
    FB_RETURN_IF_ERROR(fill.Kill());
  }
  const double fill_seconds = Seconds(Now() - begin);
  const bool cold = DropPageCache();
  options.Say("opening after the kill");
  FB_ASSIGN_OR_RETURN(nlohmann::ordered_json first, MeasureOpen(folder, records));
  options.Say("opening again after another kill");
  FB_ASSIGN_OR_RETURN(nlohmann::ordered_json again, MeasureOpen(folder, records));
  const OnDisk on_disk = Measure(folder);
  const bool whole = first["pending"].get<int64_t>() >= records &&
                     first["ledger_balanced"].get<bool>() && first["wrong"].get<int64_t>() == 0;
  return nlohmann::ordered_json{{"records", records},
                                {"record_bytes", kRecordBytes},
                                {"segments", on_disk.segments},
                                {"segment_bytes", on_disk.segment_bytes},
                                {"state_bytes", on_disk.state_bytes},
                                {"fill_seconds", fill_seconds},
                                {"page_cache_cold", cold},
                                {"load_average", LoadAverage()},
                                {"nothing_lost", whole},
                                {"after_crash", std::move(first)},
                                {"again", std::move(again)}};
}

}  // namespace forebay::bench
