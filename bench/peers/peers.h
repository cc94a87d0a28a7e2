// The peers of the buffer benchmark, each behind bench::Engine.
//
// A peer is compiled only where its headers are installed, and a server is found when it is
// started: kNotFound says how to install it (bench/peers/setup_buffer.sh). Peers are tuned as their
// own documentation advises for this load, and differ in what their acknowledgement promises.
#pragma once

#include <memory>
#include <string>

#include "bench/buffer_engine.h"
#include "forebay/base/status.h"

namespace forebay::bench {

struct PeerOptions {
  std::string folder;        // for data and logs, on a real disk; exists and is the peer's alone
  std::string peers_folder;  // what setup_buffer.sh made: .deps/peers
};

// A lock-free queue of pointers to copies: the upper bound of anything in one process.
Result<std::unique_ptr<Engine>> MakeMoodycamel(const PeerOptions& options);

// Keys in order, read with MultiGet, a cursor for what was consumed. `sync`: power loss; else kill.
Result<std::unique_ptr<Engine>> MakeRocksDb(const PeerOptions& options, bool sync);

// Power loss.
Result<std::unique_ptr<Engine>> MakeLmdb(const PeerOptions& options);

// WAL with synchronous = FULL: power loss.
Result<std::unique_ptr<Engine>> MakeSqlite(const PeerOptions& options);

// A stream with one consumer group over a Unix socket. `always`: appendfsync always (power loss);
// else everysec (a second of loss).
Result<std::unique_ptr<Engine>> MakeRedis(const PeerOptions& options, bool always);

// JetStream, file storage, a work queue over loopback TCP. `always`: sync_interval always (power
// loss); else the default, two minutes of loss.
Result<std::unique_ptr<Engine>> MakeNats(const PeerOptions& options, bool always);

// Reverb's own server (memory only), a queue table, spoken to in gRPC from C++ with ready-made
// uncompressed chunks: less work for client and server than its Python writer.
Result<std::unique_ptr<Engine>> MakeReverb(const PeerOptions& options);

// kNotFound: "<what> is not installed: run bench/peers/setup_buffer.sh and configure again".
Status PeerMissing(const std::string& what);

}  // namespace forebay::bench
