// Server: named buffers for other processes, over a Unix socket and over TCP with TLS and a token.
//
// docs/buffer_protocol.md is the wire format. One I/O thread serves every connection, takes
// included (it reads those of their groups that only the disk has); two more run the calls that may
// block for long (leases, commits, registrations). No connection has a thread of its own, and none
// can make the server hold more than its share: append bytes are bounded by credits, output by a
// limit, every wait by a deadline. A client that breaks a rule is told why and disconnected; the
// others do not notice.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::buffer {

struct ServedTable {
  Buffer* buffer = nullptr;  // outlives the server
  // As the buffer's options. With implied_dispatch, appends need a registered producer and ids of
  // its range; without, ids come from the coordinator and pass through as they are.
  bool implied_dispatch = true;
  int32_t group_size = 8;
  int64_t record_bytes_max = int64_t{16} << 20;  // at most 1 GiB
};

struct ServerOptions {
  // "unix:/path/to.sock" (made with mode 0600; a dead one is replaced) and "tcp:host:port" (port 0:
  // any; addresses() says which). Anything beyond loopback needs TLS and a token.
  std::vector<std::string> listen;
  std::string token;             // "": no token asked for
  std::string certificate_file;  // PEM chain; TLS on TCP when given
  std::string key_file;          // PEM
  // Keeps producers.json, so that a restarted server knows who holds which name. "": kept in memory
  // (for tables that are in memory, too).
  std::string folder;
  // The largest Recovery::next_trajectory_id of the tables: no id below it is given out, even if
  // producers.json was lost or restored from a copy.
  int64_t next_trajectory_id = 1;

  int32_t connections_max = 1024;
  int64_t credit_bytes = int64_t{8} << 20;        // unacknowledged appends of one connection
  int64_t append_bytes_max = int64_t{256} << 20;  // of all; reading stops above it
  int64_t output_bytes_max = int64_t{256} << 20;  // of one connection; no sample starts above it
  // Of memory shared with clients on this machine (Unix sockets), of all; only what was used takes
  // memory. Above it, and where it is 0, payloads go through the socket.
  int64_t shared_bytes_max = int64_t{1} << 30;
  int32_t requests_max = 256;  // open, other than appends, of one connection
  Duration hello_deadline = std::chrono::seconds(10);  // from accept, TLS included
  Duration frame_deadline = std::chrono::seconds(30);  // from a frame's first byte to its last
  Duration write_deadline = std::chrono::seconds(30);  // without progress on a full socket
  Duration ping_after = std::chrono::seconds(10);      // of silence
  Duration idle_deadline = std::chrono::seconds(40);   // of silence in spite of the pings
  Duration append_deadline_max = std::chrono::seconds(600);
};

// Why a connection or a request was refused.
enum class Refusal : uint8_t {
  kConnections = 0,  // too many
  kTls = 1,          // a failed handshake
  kToken = 2,
  kVersion = 3,  // none in common
  kFenced = 4,   // a producer that was registered again elsewhere
  kFrame = 5,    // garbage: a header that does not check
  kOversized = 6,
  kMessage = 7,  // a frame that is whole but not understood, or out of turn
  kCredit = 8,   // more unacknowledged bytes than granted, or too many requests
  kSlowHello = 9,
  kSlowFrame = 10,
  kSlowReader = 11,
  kIdle = 12,
};
inline constexpr int kRefusals = 13;
std::string_view RefusalName(Refusal refusal);  // "slow_frame"

struct ServerStats {
  int64_t connections = 0;        // now
  int64_t connections_total = 0;  // accepted
  int64_t bytes_in = 0, bytes_out = 0;
  int64_t appends = 0, append_errors = 0, takes = 0, requests = 0;
  int64_t append_bytes = 0;   // unacknowledged, now
  int64_t waiting_takes = 0;  // now
  int64_t tail_skipped = 0;   // records that a slow tail did not get
  std::array<int64_t, kRefusals> refused{};
};

// Whether a table may have this name, which can be that of its folder too: 1 to 128 letters,
// digits,
// '.', '_' or '-', and neither "." nor "..". kInvalidArgument.
Status CheckTableName(std::string_view name);

// Thread-safe.
class Server {
 public:
  // Listens and serves. kInvalidArgument: an address, certificate or table that cannot be used, or
  // TCP beyond loopback without TLS and token; kAlreadyExists: somebody serves there.
  static Result<std::unique_ptr<Server>> Start(const std::map<std::string, ServedTable>& tables,
                                               const ServerOptions& options);
  virtual ~Server() = default;  // stops, as Stop(Now())

  // What to give to clients, in the order of `listen`; ports are the real ones.
  virtual std::vector<std::string> addresses() const = 0;
  virtual ServerStats stats() const = 0;
  // One sentence for each of the last 64 refusals, oldest first: from whom it came, and why.
  virtual std::vector<std::string> refusals() const = 0;

  // Takes that wait look again now: call it where the buffer's owner learns of an append that did
  // not come through this server (they look every few milliseconds anyway).
  virtual void Wake() = 0;

  // Ordered: no new connections or requests, then the acknowledgements of appends that are under
  // way until `deadline`, then goodbyes. The buffers stay open. Idempotent; blocks.
  virtual void Stop(TimePoint deadline) = 0;
};

}  // namespace forebay::buffer
