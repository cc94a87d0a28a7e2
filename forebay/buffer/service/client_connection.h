// ClientConnection: one connection of a client, shared by all its threads.
//
// A thread that calls queues its request; whoever finds nobody sending sends for all (one system
// call for what has gathered), and whoever finds nobody reading reads for all and hands the role on
// when its own answer is there: a lone caller needs no other thread, many share the calls into the
// kernel. A background thread (the keeper) reads when only asynchronous appends are open, answers
// pings, and connects again after a loss.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/service/client_area.h"
#include "forebay/buffer/service/client_session.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/frame_reader.h"
#include "forebay/buffer/service/signal.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {

// One request and its answer.
struct Pending {
  FrameHeader header;        // length and request are filled in
  std::string_view payload;  // must stay until the answer
  TimePoint deadline{};      // of the call
  TimePoint
      told_deadline{};  // goes along, in milliseconds, as the frame's argument; zero: does not
  // Asynchronous (an append): `owned` holds the payload, `done` is called, then this is deleted.
  std::string owned;
  std::function<void(Status)> done;

  Status status;
  FrameType answer = FrameType::kDone;
  std::shared_ptr<const void> memory;  // of `reply`
  std::string_view reply;

  Signal signal;
  uint32_t slot = 0;
  // In the list of those that wait, under the connection's mutex.
  Pending* older = nullptr;
  Pending* newer = nullptr;
};

class ClientConnection {
 public:
  ClientConnection(ClientSession& session, Purpose purpose);
  ~ClientConnection();
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  // The first time; afterwards the keeper sees to it.
  Status Connect(TimePoint deadline);

  // Sends and waits for the answer; its status, or why there is none.
  Status Call(Pending& pending);
  // Takes the request over.
  void CallAsync(std::unique_ptr<Pending> pending);

  // Everything is answered, or the deadline has passed.
  bool WaitIdle(TimePoint deadline);
  // Fails what is open and all that comes.
  void Close(const Status& why);
  void AddStats(ClientStats& stats) const;

 private:
  enum class State : uint8_t { kBroken, kOpen, kClosed };
  enum class SlotState : uint8_t { kFree, kQueued, kSending, kSent };
  struct Slot {
    Pending* pending = nullptr;  // null: nobody waits for the answer any more
    uint64_t request = 0;
    SlotState state = SlotState::kFree;
    FrameType type = FrameType::kPing;
    uint16_t table = 0;
    uint32_t bytes = 0;
    std::optional<uint64_t> shared;  // where its payload lies in area_
    bool credit = false;             // its bytes are counted as outstanding
    bool answered = false;  // while its bytes were still being sent: told when that has ended
    bool leaving = false;   // its caller waits for nothing but the end of the sending
  };
  // Decided under the lock, told after it.
  struct Finished {
    std::vector<Pending*> async;
    Bells::Chosen wake;
    bool empty() const { return async.empty() && !wake.any(); }
  };

  // ---- client_connection.cc: calling
  // Copies an append's payload into memory that is shared, if there is any. Unlocks meanwhile.
  std::optional<uint64_t> Place(const Pending& pending) FB_REQUIRES(mutex_);
  void Enqueue(Pending& pending, std::optional<uint64_t> shared) FB_REQUIRES(mutex_);
  // True when the caller may return; else its bytes are being sent from where they lie.
  bool Abandon(Pending& pending) FB_REQUIRES(mutex_);
  void AddWaiter(Pending& pending) FB_REQUIRES(mutex_);
  void RemoveWaiter(Pending& pending) FB_REQUIRES(mutex_);
  void FreeSlot(Slot& slot) FB_REQUIRES(mutex_);
  void Complete(Slot& slot, Status status, Finished& finished) FB_REQUIRES(mutex_);
  void Tell(Finished& finished) FB_EXCLUDES(mutex_);

  // ---- client_io.cc: moving bytes. These unlock and lock again.
  void Send(Pending* caller = nullptr) FB_REQUIRES(mutex_);
  bool Gather() FB_REQUIRES(mutex_);
  void WriteAll() FB_REQUIRES(mutex_);
  void Rescue(size_t next_area, Finished& finished) FB_REQUIRES(mutex_);
  // Reads for all until `pending` is answered (null: until no asynchronous append is open), the
  // deadline, or the loss of the connection; then hands the role on. True when it is answered.
  bool Lead(Pending* pending, TimePoint deadline) FB_REQUIRES(mutex_);
  Status OnFrame(const FrameHeader& header, std::string_view payload, Finished& finished)
      FB_REQUIRES(mutex_);
  Status OnAnswer(const FrameHeader& header, std::string_view payload, Finished& finished)
      FB_REQUIRES(mutex_);
  void HandOn(Finished& finished) FB_REQUIRES(mutex_);

  // ---- client_keeper.cc: losing and finding the server
  void Keep();
  void Tick(Finished& finished) FB_REQUIRES(mutex_);
  void Reconnect(Duration& backoff) FB_REQUIRES(mutex_);
  void Opened(Connected connected) FB_REQUIRES(mutex_);
  void Break(const Status& why, Finished& finished) FB_REQUIRES(mutex_);
  // Of what nobody is sending right now; the sender sees to that.
  void FailOpen(const Status& why, bool appends, Finished& finished) FB_REQUIRES(mutex_);
  void CloseFor(const Status& why, Finished& finished) FB_REQUIRES(mutex_);

  ClientSession& session_;
  const Purpose purpose_;

  Bells bells_;
  mutable Mutex mutex_;
  CondVar keeper_wake_, idle_;
  State state_ FB_GUARDED_BY(mutex_) = State::kBroken;
  Status last_error_ FB_GUARDED_BY(mutex_);
  std::unique_ptr<Stream> stream_;  // replaced only while nobody reads or sends
  std::shared_ptr<ClientArea> area_ FB_GUARDED_BY(mutex_);  // of this stream; may be null
  FrameReader reader_;                                      // the leader's
  std::vector<char> scratch_;                               // the leader's
  bool reading_ FB_GUARDED_BY(mutex_) = false;
  bool sending_ FB_GUARDED_BY(mutex_) = false;

  std::vector<Slot> slots_ FB_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_slots_ FB_GUARDED_BY(mutex_);
  uint64_t next_request_ FB_GUARDED_BY(mutex_) = 1;
  std::deque<uint32_t> queue_ FB_GUARDED_BY(mutex_);  // slots to be sent
  std::string control_ FB_GUARDED_BY(mutex_);         // pings, pongs, what needs no answer
  int64_t open_ FB_GUARDED_BY(mutex_) = 0;
  int64_t open_async_ FB_GUARDED_BY(mutex_) = 0;
  int64_t untold_ FB_GUARDED_BY(mutex_) = 0;  // answered, but not called back yet
  int64_t outstanding_bytes_ FB_GUARDED_BY(mutex_) = 0;
  Pending* oldest_ FB_GUARDED_BY(mutex_) = nullptr;  // of those that wait
  Pending* newest_ FB_GUARDED_BY(mutex_) = nullptr;
  Pending* leader_ FB_GUARDED_BY(mutex_) = nullptr;
  const Pending* sender_ FB_GUARDED_BY(mutex_) = nullptr;

  // The sender's.
  struct Piece {
    uint32_t slot;
    uint64_t request;
    size_t area;  // of areas_: the caller's payload; 0: it lies in sent_small_
  };
  // Headers and small payloads, gathered; nothing points at them by name.
  void AddSmall(std::string_view bytes) FB_REQUIRES(mutex_);
  std::vector<Piece> sent_pieces_;
  std::vector<iovec> areas_;
  std::vector<char> sent_small_;  // never grows beyond its capacity: areas_ points into it
  std::vector<std::unique_ptr<char[]>> rescued_;  // payloads whose callers went away

  uint64_t credit_bytes_ FB_GUARDED_BY(mutex_) = 0;
  Duration ping_after_ FB_GUARDED_BY(mutex_){},
      idle_deadline_ FB_GUARDED_BY(mutex_){}, tick_ FB_GUARDED_BY(mutex_){};
  TimePoint last_in_ FB_GUARDED_BY(mutex_);
  TimePoint last_ping_ FB_GUARDED_BY(mutex_);
  TimePoint broken_since_ FB_GUARDED_BY(mutex_);
  ClientStats counts_ FB_GUARDED_BY(mutex_);
  std::thread keeper_;
};

}  // namespace forebay::buffer
