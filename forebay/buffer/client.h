// Client: a buffer in another process (buffer/server.h), for actors, learners and tools.
//
// One client serves all threads of a process over a few connections: their requests are pipelined
// and sent together. When a connection breaks, it is made again in the background and what was not
// acknowledged is sent again; the server recognises what it has, so each append is stored once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

struct ClientOptions {
  std::string address;  // "unix:/path/to.sock" or "tcp:host:port"
  std::string token;
  // PEM: the authorities (or the very certificate) that the server must show. TLS on TCP when
  // given.
  std::string ca_file;
  std::string server_name;  // expected in the certificate; "": the host of `address`

  // The write identity, [A-Za-z0-9._-]{1,128}. Appends to tables without a coordinator need one.
  // Whoever registers a name last holds it: earlier holders' appends are refused.
  std::string producer;

  int32_t connections = 1;  // for appends; reads have one more
  // Appends that are not acknowledged, of this client: more wait.
  int64_t unacknowledged_bytes_max = int64_t{64} << 20;
  int64_t reply_bytes_max = int64_t{1} << 30;
  Duration connect_deadline = std::chrono::seconds(10);    // the first time
  Duration reconnect_deadline = std::chrono::seconds(60);  // then what waits fails: kUnavailable
  Duration request_deadline = std::chrono::seconds(60);    // of requests that give none
};

struct ClientStats {
  int64_t appends = 0;  // acknowledged
  int64_t reconnects = 0, resent_appends = 0;
  int64_t bytes_in = 0, bytes_out = 0;
  int64_t unacknowledged_bytes = 0;
};

// One table of the server. Thread-safe; lives as long as its client. Calls block until the answer,
// the deadline (kDeadlineExceeded), or the loss of the server (kUnavailable; what was asked may
// have happened). A deadline of zero is ClientOptions::request_deadline from now.
class RemoteTable {
 public:
  virtual ~RemoteTable() = default;
  virtual const std::string& name() const = 0;
  virtual int32_t group_size() const = 0;
  virtual bool implied_dispatch() const = 0;

  // ---- actors: as in Buffer
  // `encoded` is not copied: the calling thread sends it (the fastest way in). Idempotent where the
  // ids are of this client (Client::NewIds); after kDeadlineExceeded it may still happen.
  virtual Status AppendEncodedAndWait(std::string_view encoded, const AppendOptions& options) = 0;
  // Copies `encoded`; `done` runs on a thread of the client or of another caller and must not
  // block. Blocks only while unacknowledged_bytes_max is reached.
  virtual void AppendEncoded(std::string_view encoded, const AppendOptions& options,
                             std::function<void(Status)> done) = 0;
  virtual Status Dispatch(const TrajectoryId& id) = 0;
  virtual Status Reject(const TrajectoryId& id, RejectReason reason) = 0;
  virtual Status CloseGroup(int64_t group_id) = 0;

  // ---- readers without checkpoints. The views lie in one block that Taken::memory owns.
  virtual Result<Taken> Take(const TakeOptions& options, TimePoint deadline) = 0;
  virtual Status Acknowledge(int64_t take_id) = 0;
  virtual Status GiveBack(int64_t take_id) = 0;

  // ---- the learner. After an error of Lease other than kInvalidArgument the batch may be leased
  // all the same: ReadBatch of the next sequence tells. A batch above 1 GiB does not fit one reply
  // (kResourceExhausted): read it in shards.
  virtual Result<Batch> Lease(int64_t groups, int64_t learner_version, TimePoint deadline) = 0;
  virtual Result<Batch> ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) = 0;
  virtual Status MarkTrained(int64_t batch_sequence) = 0;
  virtual Status Commit(int64_t batch_sequence) = 0;
  virtual Status Release(int64_t batch_sequence) = 0;

  // ---- operators
  virtual Status Pause(bool appends, bool readers) = 0;
  virtual Status Unblock(const std::string& reason) = 0;
  virtual Result<std::vector<GroupInfo>> Inspect(int64_t from_group_id, int64_t limit) = 0;
  virtual Result<Ledger> ledger() = 0;
  virtual Result<BufferStats> stats() = 0;  // kept_bytes is not sent: 0
};

// Thread-safe.
class Client {
 public:
  // Connects and registers. kUnavailable: nobody there; kFailedPrecondition: refused (token,
  // version); kInvalidArgument: an option that cannot be.
  static Result<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  virtual ~Client() = default;  // closes

  // kNotFound names the tables that there are.
  virtual Result<RemoteTable*> Table(std::string_view name) = 0;
  virtual std::vector<std::string> tables() const = 0;

  // The first of `count` consecutive trajectory ids that no other client has, ever:
  // producer_number() * 2^40 + a sequence. For a group of one producer, the first id of its members
  // is a good group id, too. Needs ClientOptions::producer (CHECK).
  virtual int64_t NewIds(int64_t count) = 0;
  virtual int64_t producer_number() const = 0;  // 0: none
  virtual int64_t epoch() const = 0;            // 1, 2, ...: the registrations of this name

  virtual ClientStats stats() const = 0;

  // Waits for unacknowledged appends until `deadline`, then fails the rest: kCancelled. Idempotent.
  virtual void Close(TimePoint deadline) = 0;
};

}  // namespace forebay::buffer
