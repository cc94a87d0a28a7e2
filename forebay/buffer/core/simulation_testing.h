// A seeded simulation: clients, readers, a learner and its checkpoints over a disk that fails,
// process after process, against a naive record of what was promised. Everything follows from the
// seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/file_testing.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// What the schedules reached.
struct SimulationCounts {
  int64_t acknowledged = 0, duplicates = 0, replays = 0, taken = 0, expired = 0, uncommitted = 0;
  int64_t faults = 0, crashes = 0, crashes_in_open = 0, flips = 0;
  int64_t full = 0 /* logs without room for a note */, drained = 0;
  void Add(const SimulationCounts& more);
  std::string ToString() const;
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;
  // Reports what does not hold by gtest's EXPECT.
  void Run();
  const SimulationCounts& counts() const { return counts_; }

 private:
  // What a client has to append, until it is told how that ended.
  struct Job {
    TrajectoryId id;
    std::string encoded;
    bool fails = false;
  };
  struct Lease {
    std::vector<int64_t> ids;
    int64_t learner_version = 0;
  };
  struct Held {
    Taken taken;
    bool expires = false;
  };

  bool implied() const { return options_.implied_dispatch; }
  bool dead() const { return dying_ || disk_.dead(); }

  // ---- a process
  bool Open();
  Status TryOpen(Recovery* recovery);
  void AfterOpen(const Recovery& recovery);
  void ChooseCheckpoint();
  void CheckAcknowledged(const Table& table, const Recovery& recovery);
  void CheckReplays(const Table& table);
  void ArmCrash(uint64_t operations);
  void End();
  // With a disk that works again, everything that waits can go on.
  void Drain();

  // ---- its steps
  void Step();
  void CheckStep();
  void DispatchOne();
  void AppendOne();
  void AppendAgain();
  void OnAppended(const Job& job, const Status& status);
  void RejectOne();
  void CloseOne();
  void Close(int64_t group);
  void Ask(Job job);
  void LeaseOne();
  void ReadBatchOne();
  void TrainOne();
  void CheckpointOne();
  void TakeOne();
  void EndTake();
  void PumpNow();
  // Its content must be what was appended, and it must be nobody else's.
  void CheckGiven(const TrajectoryId& id, const std::string& encoded);

  Rng rng_;
  SimDisk disk_;
  BufferOptions options_;
  std::unique_ptr<Core> core_;
  SimulationCounts counts_;
  bool dying_ = false;
  bool flipped_ = false;       // a bit, since the last process
  bool ever_flipped_ = false;  // or reads failed
  bool ever_torn_ = false;
  bool start_failed_ = false;  // since then
  int64_t next_id_ = 1, next_group_ = 0;
  int64_t checkpoint_ = 0, trained_ = 0, learner_version_ = 0;
  int64_t released_ = 0;  // by the last process
  int64_t last_acknowledged_ = 0;
  std::string history_ = "nothing";  // how the last process ended
  std::vector<int64_t> checkpoints_ = {0};
  std::vector<Job> in_flight_;
  std::map<int64_t, Job> asked_;  // appends without an answer
  std::vector<Job> appended_;     // some that ended well
  std::vector<MissingMember> vacant_;
  std::map<int64_t, std::string> content_;
  std::set<int64_t> acknowledged_, rejected_, spent_, consumed_;
  std::set<int64_t> read_;         // acknowledged takes that must not come back
  std::set<int64_t> read_unsure_;  // their record may not be durable
  std::set<int64_t> held_ids_;     // by takes that have not expired, and leases of this process
  std::map<int64_t, Lease> leases_;
  std::vector<Held> takes_;
};

}  // namespace forebay::buffer
