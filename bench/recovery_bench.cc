// Writers, a buffer server and a learner, each a process, killed with -9 at random moments again
// and again, half of the time over a log in the page cache (os), half over one on the device
// (sync). Then what was acknowledged is compared with what the learner's checkpoint was trained on
// and what is still there: each trajectory exactly once.
//
// A quarter of the kills come at once after the one before: in the middle of recoveries too.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/buffer_scratch.h"
#include "bench/harness.h"
#include "bench/recovery_process.h"
#include "bench/recovery_record.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"

namespace forebay::bench {
namespace {

using std::chrono::milliseconds;

constexpr int kWriters = 2;
// server, learner, writer 0, writer 1
constexpr size_t kProcesses = 2 + kWriters;
constexpr const char* kRoleOf[kProcesses] = {"server", "learner", "writer", "writer"};

struct Outcome {
  std::array<int64_t, kProcesses> kills{};
  int64_t acknowledged = 0, trained = 0, pending = 0;
  int64_t acknowledged_lost = 0, trained_twice = 0, wrong = 0, quarantined = 0;
  int64_t ledger_checks = 0, ledger_wrong = 0, batches = 0;
  double seconds = 0;
};

class Run {
 public:
  Run(std::string folder, std::string durability, uint64_t seed)
      : folder_(std::move(folder)), durability_(std::move(durability)), rng_(seed) {}

  Result<Outcome> Play(int kills) {
    const TimePoint begin = Now();
    FB_RETURN_IF_ERROR(MakeFolders(folder_));
    for (size_t p = 0; p < kProcesses; ++p) FB_RETURN_IF_ERROR(StartProcess(p));
    for (int k = 0; k < kills; ++k) {
      const bool at_once = rng_.Below(4) == 0;
      if (!at_once) FB_RETURN_IF_ERROR(AskLedger());
      Wait(milliseconds(at_once ? rng_.Below(30) : 50 + rng_.Below(350)));
      const size_t victim = rng_.Below(3) == 0 ? 0 : 1 + rng_.Below(kProcesses - 1);
      FB_RETURN_IF_ERROR(KillProcess(victim));
      FB_RETURN_IF_ERROR(StartProcess(victim));
    }
    FB_RETURN_IF_ERROR(AskLedger());
    // The last work of all is killed too, the server first. They do not count: nobody had to go on.
    Wait(milliseconds(200));
    for (size_t p = 0; p < kProcesses; ++p) {
      FB_RETURN_IF_ERROR(KillProcess(p));
      --outcome_.kills[p];
    }
    FB_RETURN_IF_ERROR(Audit());
    outcome_.seconds = Seconds(Now() - begin);
    return outcome_;
  }

 private:
  Status StartProcess(size_t p) {
    std::vector<std::string> args = {"serve", folder_, durability_};
    if (p == 1) args = {"learn", folder_};
    if (p >= 2) args = {"write", folder_, fmt::format("w{}", p), std::to_string(rng_.Next() >> 2)};
    FB_ASSIGN_OR_RETURN(RoleProcess process, RoleProcess::Start(args));
    processes_[p] = std::make_unique<RoleProcess>(std::move(process));
    return OkStatus();
  }

  Status KillProcess(size_t p) {
    const Status killed = processes_[p]->Kill();
    if (!killed.ok()) return killed.WithContext(kRoleOf[p]);
    ++outcome_.kills[p];
    Collect(p);
    return OkStatus();
  }

  // Reads what was reported, so that nobody waits for us.
  void Wait(milliseconds time) {
    const TimePoint end = Now() + time;
    do {
      for (size_t p = 0; p < kProcesses; ++p) Collect(p);
      std::this_thread::sleep_for(std::min<Duration>(milliseconds(5), end - Now()));
    } while (Now() < end);
  }

  void Collect(size_t p) {
    std::string& report = reports_[p];
    report += processes_[p]->TakeReport();
    if (p == 0) return ReadServer(report);
    size_t at = 0;
    for (; at + sizeof(int64_t) <= report.size(); at += sizeof(int64_t)) {
      int64_t id = 0;
      std::memcpy(&id, report.data() + at, sizeof(id));
      acknowledged_.push_back(id);
    }
    report.erase(0, at);
    // One that was killed in a report leaves a part of it; the next process begins anew.
    if (report.size() < sizeof(int64_t) && !report.empty()) report.clear();
  }

  // What it recovered to.
  void ReadServer(std::string& report) {
    for (size_t end = report.find('\n'); end != std::string::npos; end = report.find('\n')) {
      CountLedger(report.front() == '1');
      outcome_.quarantined += report.substr(0, end).ends_with(" 0") ? 0 : 1;
      report.erase(0, end + 1);
    }
  }

  void CountLedger(bool balanced) {
    ++outcome_.ledger_checks;
    outcome_.ledger_wrong += balanced ? 0 : 1;
  }

  // Of the running server: also proves that it serves again.
  Status AskLedger() {
    FB_ASSIGN_OR_RETURN(const auto client, ConnectToRecoveryServer(folder_, ""));
    FB_ASSIGN_OR_RETURN(buffer::RemoteTable* const table, client->Table("train"));
    FB_ASSIGN_OR_RETURN(const buffer::Ledger ledger, table->ledger());
    CountLedger(ledger.balanced());
    return OkStatus();
  }

  // Opens the buffer with what the last checkpoint holds, and takes out everything.
  Status Audit() {
    FB_ASSIGN_OR_RETURN(const TrainedCheckpoint checkpoint,
                        ReadCheckpoint(folder_ + "/checkpoint"));
    outcome_.wrong += checkpoint.wrong;
    outcome_.batches = checkpoint.batch;
    buffer::Recovery recovery;
    FB_ASSIGN_OR_RETURN(const std::unique_ptr<buffer::Buffer> opened,
                        buffer::Buffer::Open(RecoveryBufferOptions(folder_ + "/train", durability_),
                                             checkpoint.batch, {}, &recovery));
    outcome_.quarantined += recovery.quarantined_records;
    CountLedger(opened->ledger().balanced());
    std::unordered_map<int64_t, int> seen;
    for (const int64_t id : checkpoint.trained) ++seen[id];
    outcome_.trained = static_cast<int64_t>(checkpoint.trained.size());
    // Members of groups that lack one.
    for (const buffer::GroupInfo& group : opened->Inspect(0, int64_t{1} << 40)) {
      if (std::ranges::count(group.members, buffer::MemberState::kPending) == kRecoveryGroupSize)
        continue;
      for (size_t m = 0; m < group.members.size(); ++m) {
        if (group.members[m] != buffer::MemberState::kPending) continue;
        ++seen[group.group_id + static_cast<int64_t>(m)];
        ++outcome_.pending;
      }
    }
    while (true) {
      const bool replays = recovery.replay_batches > 0;
      const int64_t ready = opened->stats().ready_groups;
      if (!replays && ready == 0) break;
      FB_ASSIGN_OR_RETURN(
          const buffer::Batch batch,
          opened->Lease(std::clamp<int64_t>(ready, 1, 256), 0, Now() + std::chrono::seconds(60)));
      recovery.replay_batches -= batch.replay ? 1 : 0;
      for (const buffer::TrajectoryPtr& t : batch.trajectories) {
        ++seen[t->id.trajectory_id];
        ++outcome_.pending;
        if (!IsRecoveryTrajectory(*t)) ++outcome_.wrong;
      }
    }
    CountLedger(opened->ledger().balanced());
    opened->Close();
    outcome_.acknowledged = static_cast<int64_t>(acknowledged_.size());
    for (const int64_t id : acknowledged_)
      outcome_.acknowledged_lost += seen.count(id) == 0 ? 1 : 0;
    for (const auto& [id, times] : seen) outcome_.trained_twice += times > 1 ? 1 : 0;
    return OkStatus();
  }

  const std::string folder_, durability_;
  Rng rng_;
  std::array<std::unique_ptr<RoleProcess>, kProcesses> processes_;
  std::array<std::string, kProcesses> reports_;
  std::vector<int64_t> acknowledged_;
  Outcome outcome_;
};

nlohmann::ordered_json ByRole(const Outcome& outcome) {
  nlohmann::ordered_json kills = {{"writer", 0}, {"server", 0}, {"learner", 0}};
  for (size_t p = 0; p < kProcesses; ++p) {
    kills[kRoleOf[p]] = kills[kRoleOf[p]].get<int64_t>() + outcome.kills[p];
  }
  return kills;
}

}  // namespace

Result<nlohmann::ordered_json> RecoveryBench(const BenchOptions& options) {
  const int kills = options.quick ? 20 : 200;
  nlohmann::ordered_json parts;
  Outcome all;
  for (const std::string durability : {"os", "sync"}) {
    FB_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Create());
    options.Say(fmt::format("{} kills, durability {}", kills / 2, durability));
    const auto seed = static_cast<uint64_t>(Now().time_since_epoch().count());
    FB_ASSIGN_OR_RETURN(const Outcome part,
                        Run(scratch.path() + "/run", durability, seed).Play(kills / 2));
    for (size_t p = 0; p < kProcesses; ++p) all.kills[p] += part.kills[p];
    all.acknowledged += part.acknowledged;
    all.trained += part.trained;
    all.pending += part.pending;
    all.acknowledged_lost += part.acknowledged_lost;
    all.trained_twice += part.trained_twice;
    all.wrong += part.wrong;
    all.quarantined += part.quarantined;
    all.ledger_checks += part.ledger_checks;
    all.ledger_wrong += part.ledger_wrong;
    all.batches += part.batches;
    all.seconds += part.seconds;
    parts[durability] = {{"seed", seed},
                         {"acknowledged", part.acknowledged},
                         {"acknowledged_lost", part.acknowledged_lost},
                         {"trained_twice", part.trained_twice}};
  }
  int64_t killed = 0;
  for (const int64_t n : all.kills) killed += n;
  return nlohmann::ordered_json{{"kills", killed},
                                {"acknowledged_lost", all.acknowledged_lost},
                                {"trained_twice", all.trained_twice},
                                {"ledger_balanced", all.ledger_wrong == 0},
                                {"kills_by_role", ByRole(all)},
                                {"ledger_checks", all.ledger_checks},
                                {"acknowledged", all.acknowledged},
                                {"trained", all.trained},
                                {"committed_batches", all.batches},
                                {"still_pending", all.pending},
                                {"wrong_content", all.wrong},
                                {"quarantined", all.quarantined},
                                {"seconds", all.seconds},
                                {"by_durability", std::move(parts)}};
}

}  // namespace forebay::bench
