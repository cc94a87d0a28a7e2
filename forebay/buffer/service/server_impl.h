// The server: one I/O thread (epoll), and two workers for what may block. See buffer/server.h.
//
// server.cc starts and stops it; server_loop.cc moves bytes; server_requests.cc takes frames in,
// server_readers.cc and server_calls.cc answer them; server_shared.cc shares memory.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/completions.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/frame_reader.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/out_queue.h"
#include "forebay/buffer/service/producers.h"
#include "forebay/buffer/service/shared_area.h"
#include "forebay/buffer/service/socket.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {

// Memory that is shared with one client.
struct Sharing {
  explicit Sharing(std::unique_ptr<SharedArea> of)
      : area(std::move(of)), replies(area->sizes().reply_bytes) {}

  std::unique_ptr<SharedArea> area;
  AreaSpace replies;
  std::map<uint64_t, uint64_t> lent;  // the replies that the client has not returned: offset, bytes
};

// One client's connection; touched by the I/O thread only.
struct Connection {
  enum class Phase : uint8_t { kHandshake, kHello, kRegistering, kOpen, kEnding };

  explicit Connection(uint32_t length_max) : in(length_max) {}

  uint64_t id = 0;
  std::unique_ptr<Stream> stream;
  std::string peer;  // for people
  bool is_unix = false;
  Phase phase = Phase::kHandshake;
  FrameReader in;
  OutQueue out;
  uint16_t version = 0;  // of the protocol
  std::unique_ptr<Sharing> sharing;

  std::string producer;  // "": none
  int64_t number = 0, epoch = 0;
  bool fenced = false;

  bool appends = false;        // has done so
  int64_t append_bytes = 0;    // unacknowledged
  int32_t requests = 0;        // open
  std::vector<uint64_t> acks;  // to be sent
  bool touched = false;        // in the list of those with something to send
  bool paused = false;         // not read from, for want of room
  bool stalled = false;        // not read from, for want of its reading
  bool want_write = false;     // watched for room in the socket
  uint32_t watched = 0;        // the epoll events

  // Takes whose content has not left yet: (bytes that must have left, buffer, take id).
  struct Unsent {
    uint64_t sent_at;
    Buffer* buffer;
    int64_t take_id;
  };
  std::deque<Unsent> unsent;

  int32_t tail_table = -1;  // -1: none
  uint64_t tail_request = 0;
  uint64_t tail_skipped = 0;

  TimePoint opened, last_in, last_ping;
  TimePoint frame_since{};  // of the unfinished frame; zero: none
  TimePoint write_since{};  // without progress; zero: nothing to send
  TimePoint ending_since{};
};

inline constexpr size_t kReplyBytesMax = size_t{1} << 30;

class ServerImpl final : public Server {
 public:
  ServerImpl(const std::map<std::string, ServedTable>& tables, const ServerOptions& options);
  ~ServerImpl() override;
  Status Open();
  void RemoveSockets();

  std::vector<std::string> addresses() const override;
  ServerStats stats() const override;
  std::vector<std::string> refusals() const override;
  void Wake() override;
  void Stop(TimePoint deadline) override;

 private:
  struct Table {
    std::string name;
    ServedTable served;
    int32_t tails = 0;
    bool fresh = false;  // an append was acknowledged since the takes that wait last looked
  };
  struct Listener {
    Fd fd;
    Address address;
  };
  // An append that the buffer has.
  struct Slot {
    uint64_t connection = 0, request = 0;
    int64_t bytes = 0;
    uint16_t table = 0;
    std::shared_ptr<const std::string> copy;  // for tails
  };
  struct WaitingTake {
    uint64_t connection = 0, request = 0;
    uint16_t table = 0;
    TakeOptions options;
    TimePoint deadline;
  };
  // What a request's answer is: nothing but "done", or bytes.
  using Answer = Result<std::shared_ptr<const std::string>>;

  // ---- server_loop.cc
  void Run();
  int WaitMs() const;
  void Accept(Listener& listener);
  void OnEvents(std::span<const epoll_event> events);
  void OnEvent(Connection& c, uint32_t events);
  void Read(Connection& c);
  void Handshake(Connection& c);
  void Touch(Connection& c);
  void FlushTouched();
  void Flush(Connection& c);
  void Watch(Connection& c);
  void CheckDeadlines(TimePoint now);
  void CheckPause();
  // Says why, stops listening to it and closes once that has left.
  void Refuse(Connection& c, Refusal refusal, const Status& why);
  void Goodbye(Connection& c, const Status& why);
  void Note(Refusal refusal, const std::string& peer, std::string_view why);
  void Close(Connection& c);
  void DeleteClosed();
  Connection* Find(uint64_t id);
  bool Drained() const;
  void BeginStop();
  // Thread-safe: runs on the I/O thread.
  void Post(std::function<void()> fn);
  void WakeLoop();

  // ---- server_requests.cc
  Status OnFrame(Connection& c, const FrameHeader& header, std::string_view payload);
  Status OnHello(Connection& c, const FrameHeader& header, std::string_view payload);
  void Welcomed(uint64_t connection, const std::string& name, bool registered,
                const Result<Producer>& producer);
  void SendWelcome(Connection& c, const SessionSecret& secret);
  Status OnAppend(Connection& c, const FrameHeader& header, std::string_view payload);
  void FinishAppends();
  void Fail(Connection& c, uint64_t request, const Status& why);

  // ---- server_shared.cc
  Status OnShare(Connection& c, std::string_view payload);
  Status OnAppendShared(Connection& c, const FrameHeader& header, std::string_view payload);
  Status OnReplyReturned(Connection& c, std::string_view payload);
  // Room for a reply that the client sees; nullptr: send it. `piece` says where it is.
  static char* LendReply(Connection& c, size_t bytes, SharedPiece* piece);

  // ---- server_calls.cc
  Status OnRequest(Connection& c, const FrameHeader& header, std::string_view payload);
  // Runs fn on a worker and sends its answer.
  void RunOn(WorkerPool& worker, Connection& c, const FrameHeader& header,
             std::function<Answer()> fn);
  void Finish(uint64_t connection, uint64_t request, const Answer& answer);

  // ---- server_readers.cc
  Status OnTake(Connection& c, const FrameHeader& header, std::string_view payload);
  Status OnTail(Connection& c, const FrameHeader& header);
  bool TryTake(WaitingTake& take);
  void SendTaken(Connection& c, const WaitingTake& take, const Taken& taken);
  void TryTakes(bool all);
  void FailTakes(int32_t table, const Status& why);  // -1: of all tables
  void SendTail(const Slot& slot);
  void LeaseSlice(uint64_t connection, uint64_t request, Buffer* buffer, LeaseRequest lease,
                  TimePoint deadline);

  const ServerOptions options_;
  std::vector<Table> tables_;
  uint32_t frame_bytes_max_ = 0;
  std::vector<Listener> listeners_;
  std::vector<std::string> addresses_;
  TlsContext tls_;
  std::unique_ptr<Producers> producers_;
  Fd epoll_, event_;
  std::vector<char> scratch_;
  std::unique_ptr<Completions, DeleteCompletions> completions_;

  // ---- the I/O thread's
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<uint64_t> closed_;
  std::vector<uint64_t> touched_;
  std::vector<uint64_t> again_;  // have bytes that epoll does not know of
  uint64_t next_connection_ = 1000;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<Completions::Done> done_;
  std::vector<WaitingTake> takes_;
  TimePoint now_;  // of this turn of the loop
  TimePoint next_check_, next_take_, accept_again_{};
  bool reading_paused_ = false;
  int64_t shared_bytes_ = 0;
  int64_t jobs_ = 0;  // on the workers
  bool stopping_ = false;
  TimePoint stop_deadline_{};
  ServerStats counts_;

  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_asked_{false};
  mutable Mutex mutex_;
  std::vector<std::function<void()>> posts_ FB_GUARDED_BY(mutex_);
  ServerStats published_ FB_GUARDED_BY(mutex_);
  std::deque<std::string> refusals_ FB_GUARDED_BY(mutex_);

  Mutex stop_mutex_;
  std::unique_ptr<WorkerPool> quick_, slow_;
  std::thread thread_ FB_GUARDED_BY(stop_mutex_);
};

}  // namespace forebay::buffer
