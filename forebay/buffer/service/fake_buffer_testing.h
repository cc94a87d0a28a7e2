// FakeBuffer: a Buffer in memory, as simple as can be, for the tests of the service.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

struct FakeOptions {
  int32_t group_size = 1;
  // Appends are acknowledged by a thread, after that long; zero: at once, on the caller's.
  Duration acknowledge_after{};
  bool hold = false;  // acknowledgements wait for LetGo
};

class FakeBuffer final : public Buffer {
 public:
  explicit FakeBuffer(const FakeOptions& options);
  ~FakeBuffer() override;

  // ---- for tests
  void LetGo();  // hold ends
  int64_t stored() const;
  int64_t duplicates() const;
  int64_t held() const;  // appends that wait for LetGo
  int64_t given_back() const;
  std::string encoded(int64_t trajectory_id) const;
  std::vector<std::string> calls() const;  // of the learner's and operators' methods

  Status Dispatch(const TrajectoryId& id) override;
  void Append(Trajectory trajectory, TimePoint deadline, std::function<void(Status)> done) override;
  void AppendEncoded(std::string_view encoded, const AppendOptions& options,
                     std::function<void(Status)> done) override;
  Status AppendEncodedAndWait(std::string_view encoded, const AppendOptions& options) override;
  Status Reject(const TrajectoryId& id, RejectReason reason) override;
  Status CloseGroup(int64_t group_id) override;
  Result<Batch> Lease(int64_t groups, int64_t learner_version, TimePoint deadline) override;
  Status MarkTrained(int64_t batch_sequence) override;
  Status Commit(int64_t batch_sequence) override;
  Status Release(int64_t batch_sequence) override;
  Result<Batch> ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) override;
  Result<Taken> Take(const TakeOptions& options, TimePoint deadline) override;
  Status Acknowledge(int64_t take_id) override;
  Status GiveBack(int64_t take_id) override;
  void Pause(bool appends, bool readers) override;
  void Unblock(const std::string& reason) override;
  std::vector<GroupInfo> Inspect(int64_t from_group_id, int64_t limit) const override;
  Ledger ledger() const override;
  BufferStats stats() const override;
  void Close() override;

 private:
  struct Record {
    TrajectoryId id;
    std::shared_ptr<const std::string> encoded;
  };
  struct Waiting {
    TimePoint when;
    std::function<void(Status)> done;
  };
  void Run();
  Status Call(std::string call);
  // Moves up to `groups` whole groups out of ready_; empty if there are fewer. Under mutex_.
  std::vector<Record> TakeReady(int64_t groups);

  const FakeOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Record> records_;               // by trajectory id
  std::map<int64_t, std::vector<Record>> partial_;  // by group
  std::deque<std::vector<Record>> ready_;
  std::map<int64_t, std::vector<Record>> taken_, batches_;
  std::deque<Waiting> waiting_;
  std::vector<std::string> calls_;
  int64_t duplicates_ = 0, given_back_ = 0, next_take_ = 1, next_batch_ = 1, trained_ = 0;
  bool hold_ = false, closing_ = false;
  std::thread thread_;
};

}  // namespace forebay::buffer
