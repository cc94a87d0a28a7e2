// The client and its tables: buffer/client.h over the connections of one session.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/service/client_connection.h"
#include "forebay/buffer/service/client_session.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

class ClientImpl;

class RemoteTableImpl final : public RemoteTable {
 public:
  RemoteTableImpl(ClientImpl& client, WelcomeTable table, uint16_t index)
      : client_(client), table_(std::move(table)), index_(index) {}

  const std::string& name() const override { return table_.name; }
  int32_t group_size() const override { return table_.group_size; }
  bool implied_dispatch() const override { return table_.implied_dispatch; }

  Status AppendEncodedAndWait(std::string_view encoded, const AppendOptions& options) override;
  void AppendEncoded(std::string_view encoded, const AppendOptions& options,
                     std::function<void(Status)> done) override;
  Status Dispatch(const TrajectoryId& id) override;
  Status Reject(const TrajectoryId& id, RejectReason reason) override;
  Status CloseGroup(int64_t group_id) override;
  Result<Taken> Take(const TakeOptions& options, TimePoint deadline) override;
  Status Acknowledge(int64_t take_id) override;
  Status GiveBack(int64_t take_id) override;
  Result<Batch> Lease(int64_t groups, int64_t learner_version, TimePoint deadline) override;
  Result<Batch> ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) override;
  Status MarkTrained(int64_t batch_sequence) override;
  Status Commit(int64_t batch_sequence) override;
  Status Release(int64_t batch_sequence) override;
  Status Pause(bool appends, bool readers) override;
  Status Unblock(const std::string& reason) override;
  Result<std::vector<GroupInfo>> Inspect(int64_t from_group_id, int64_t limit) override;
  Result<Ledger> ledger() override;
  Result<BufferStats> stats() override;

 private:
  TimePoint Deadline(TimePoint asked) const;
  Status CheckAppend(std::string_view encoded, const AppendOptions& options) const;
  void FillAppend(Pending& pending, std::string_view encoded, const AppendOptions& options) const;
  // Asks and waits; the answer is in `pending`.
  Status Ask(Pending& pending, FrameType type, std::string_view payload, uint32_t argument = 0);
  Status AskNumber(FrameType type, int64_t number);
  // As Ask, for requests that the server itself waits with.
  Status AskUntil(Pending& pending, FrameType type, std::string_view payload, TimePoint deadline);
  Status AskStats(Ledger* ledger, BufferStats* stats);

  ClientImpl& client_;
  const WelcomeTable table_;
  const uint16_t index_;
};

class ClientImpl final : public Client {
 public:
  explicit ClientImpl(std::unique_ptr<ClientSession> session);
  ~ClientImpl() override;
  Status Open();

  Result<RemoteTable*> Table(std::string_view name) override;
  std::vector<std::string> tables() const override;
  int64_t NewIds(int64_t count) override;
  int64_t producer_number() const override { return producer_number_; }
  int64_t epoch() const override { return epoch_; }
  ClientStats stats() const override;
  void Close(TimePoint deadline) override;

  // ---- for the tables
  const ClientOptions& options() const { return session_->options(); }
  ClientConnection& AppendConnection();
  Result<ClientConnection*> ReadConnection(TimePoint deadline);
  // Waits until that many bytes of asynchronous appends fit.
  void ReserveAsync(int64_t bytes);
  void ReleaseAsync(int64_t bytes);

 private:
  std::unique_ptr<ClientSession> session_;
  std::vector<std::unique_ptr<RemoteTableImpl>> tables_;
  int64_t producer_number_ = 0, epoch_ = 0;
  std::atomic<int64_t> next_sequence_{0};
  Mutex async_mutex_;
  CondVar async_room_;
  int64_t async_bytes_ FB_GUARDED_BY(async_mutex_) = 0;
  mutable Mutex reads_mutex_;
  bool closed_ FB_GUARDED_BY(reads_mutex_) = false;
  std::unique_ptr<ClientConnection> reads_ FB_GUARDED_BY(reads_mutex_);
  std::vector<std::unique_ptr<ClientConnection>> appends_;  // last: their threads use the others
};

}  // namespace forebay::buffer
