#include "bench/recovery_roles.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/recovery_process.h"
#include "bench/recovery_record.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kThreadsOfWriter = 4;
constexpr int64_t kGroupsOfBatch = 16;
constexpr int64_t kBatchesOfCheckpoint = 8;

[[noreturn]] void Abort(const std::string& what, const Status& status) {
  std::fprintf(stderr, "forebay-bench: %s: %s\n", what.c_str(), status.message().c_str());
  std::_Exit(3);
}

std::unique_ptr<buffer::Client> ConnectOrAbort(const std::string& folder,
                                               const std::string& producer) {
  auto client = ConnectToRecoveryServer(folder, producer);
  if (!client.ok()) Abort("cannot connect", client.status());
  return std::move(*client);
}

// Trains, which is to remember what on; commits what its checkpoints hold.
class Learner {
 public:
  Learner(std::string checkpoint_path, buffer::RemoteTable* table)
      : path_(std::move(checkpoint_path)), table_(table) {
    auto checkpoint = ReadCheckpoint(path_);
    if (!checkpoint.ok()) Abort("learner", checkpoint.status());
    checkpoint_ = std::move(*checkpoint);
    trained_ = checkpoint_.batch;
  }

  [[noreturn]] void Run() {
    // What the learner before had leased after its last checkpoint.
    while (TrainAgain(trained_ + 1)) {
    }
    while (true) {
      auto batch = table_->Lease(kGroupsOfBatch, 0, Now() + std::chrono::seconds(5));
      if (!batch.ok()) {
        if (!Transient(batch.status())) Abort("lease", batch.status());
        // It may have been leased all the same.
        if (batch.status().code() == StatusCode::kUnavailable) TrainAgain(trained_ + 1);
        continue;
      }
      // Leases of a connection that broke before the answer came.
      while (trained_ + 1 < batch->sequence) {
        if (!TrainAgain(trained_ + 1)) Abort("a lease", Internal("skips a batch"));
      }
      Train(*batch);
    }
  }

 private:
  static bool Transient(const Status& status) {
    return status.code() == StatusCode::kUnavailable ||
           status.code() == StatusCode::kDeadlineExceeded;
  }

  // False: it was not leased.
  bool TrainAgain(int64_t sequence) {
    while (true) {
      auto batch = table_->ReadBatch(sequence, 0, 1);
      if (batch.ok()) {
        Train(*batch);
        return true;
      }
      if (batch.status().code() == StatusCode::kNotFound) return false;
      if (!Transient(batch.status())) Abort("read batch", batch.status());
    }
  }

  void Train(const buffer::Batch& batch) {
    // A server that was restarted gives out what it does not know to be in a checkpoint.
    if (batch.sequence <= trained_) return;
    for (const buffer::TrajectoryPtr& t : batch.trajectories) {
      checkpoint_.trained.push_back(t->id.trajectory_id);
      if (!IsRecoveryTrajectory(*t)) ++checkpoint_.wrong;
    }
    trained_ = batch.sequence;
    (void)table_->MarkTrained(batch.sequence);  // only statistics are at stake
    if (trained_ < checkpoint_.batch + kBatchesOfCheckpoint) return;
    checkpoint_.batch = trained_;
    const Status written = WriteCheckpoint(path_, checkpoint_);
    if (!written.ok()) Abort("checkpoint", written);
    // A commit that is lost follows with the next one.
    const Status committed = table_->Commit(checkpoint_.batch);
    if (!committed.ok() && !Transient(committed)) Abort("commit", committed);
  }

  const std::string path_;
  buffer::RemoteTable* const table_;
  TrainedCheckpoint checkpoint_;  // its trained ids are ahead of its batch between checkpoints
  int64_t trained_ = 0;
};

}  // namespace

// FOLDER DURABILITY: a buffer and its server. Reports one line, its ledger, when it serves.
int ServeRole(int argc, char** args) {
  if (argc != 2) return 2;
  const std::string folder = args[0];
  auto checkpoint = ReadCheckpoint(folder + "/checkpoint");
  if (!checkpoint.ok()) Abort("server", checkpoint.status());
  buffer::Recovery recovery;
  auto opened = buffer::Buffer::Open(RecoveryBufferOptions(folder + "/train", args[1]),
                                     checkpoint->batch, {}, &recovery);
  if (!opened.ok()) Abort("server", opened.status());
  const buffer::Ledger ledger = (*opened)->ledger();
  auto server = buffer::Server::Start(
      {{"train", {.buffer = opened->get(), .group_size = kRecoveryGroupSize}}},
      {.listen = {"unix:" + folder + "/socket"}, .folder = folder});
  if (!server.ok()) Abort("server", server.status());
  RoleReport(fmt::format("{} {} {} {}\n", ledger.balanced() ? 1 : 0, ledger.pending,
                         recovery.records, recovery.quarantined_records));
  while (true) ::pause();
}

// FOLDER NAME SEED: appends groups; reports the id of each acknowledged trajectory, 8 bytes.
int WriteRole(int argc, char** args) {
  if (argc != 3) return 2;
  const auto client = ConnectOrAbort(args[0], args[1]);
  const auto found = client->Table("train");
  if (!found.ok()) Abort("writer", found.status());
  buffer::RemoteTable* const table = *found;
  const auto seed = static_cast<uint64_t>(std::atoll(args[2]));
  std::vector<std::thread> threads;
  threads.reserve(kThreadsOfWriter);
  for (uint64_t thread = 0; thread < kThreadsOfWriter; ++thread) {
    threads.emplace_back([&, thread] {
      Rng rng(DeriveSeed(seed, thread));
      while (true) {
        const int64_t group_id = client->NewIds(kRecoveryGroupSize);
        for (int32_t member = 0; member < kRecoveryGroupSize; ++member) {
          const std::string encoded = Encode(RecoveryTrajectory(group_id, member));
          Status status;
          do {
            status = table->AppendEncodedAndWait(encoded, {});
          } while (status.code() == StatusCode::kUnavailable ||
                   status.code() == StatusCode::kDeadlineExceeded);
          if (!status.ok()) Abort("append", status);
          const int64_t id = group_id + member;
          RoleReport({reinterpret_cast<const char*>(&id), sizeof(id)});
        }
        // Not as fast as it can: kills are what is measured.
        std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(4000)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// FOLDER: leases, trains, writes checkpoints, commits.
int LearnRole(int argc, char** args) {
  if (argc != 1) return 2;
  const std::string folder = args[0];
  const auto client = ConnectOrAbort(folder, "");
  const auto table = client->Table("train");
  if (!table.ok()) Abort("learner", table.status());
  Learner(folder + "/checkpoint", *table).Run();
}

int RunRecoveryRole(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string_view role = argv[2];
  char** const args = argv + 3;
  argc -= 3;
  if (role == "serve") return ServeRole(argc, args);
  if (role == "write") return WriteRole(argc, args);
  if (role == "learn") return LearnRole(argc, args);
  if (role == "fill") return FillRole(argc, args);
  if (role == "open") return OpenRole(argc, args);
  return 2;
}

}  // namespace forebay::bench
