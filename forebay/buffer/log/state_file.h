// The state files: three slots that are overwritten in turn, each a snapshot of the Table after the
// records up to a sequence. A crash tears at most one of them, and the damage of another one is
// survived too: segments are recycled only when no state but the two newest needs them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"

namespace forebay::buffer {

inline constexpr std::array<const char*, 3> kStateNames = {"state-a", "state-b", "state-c"};

struct State {
  int64_t sequence = 0;  // the snapshot has the effect of every record up to it ...
  // ... but of trajectories from this one on, which were being written: they are in flight in it.
  int64_t replay_from = 0;
  int64_t starts = 0;  // how often the folder was opened for writing; StateFiles counts
  std::string table;   // Table::EncodeSnapshot
};

// One slot's content: header with checksum, then the table.
std::string EncodeState(const State& state);
// kDataLoss for a slot that was never written, or is damaged.
Result<State> ParseState(std::string_view bytes);

// Not thread-safe.
class StateFiles {
 public:
  StateFiles(FileSystem* files, std::string folder, bool sync)
      : files_(files), folder_(std::move(folder)), sync_(sync) {}
  // The newest whole state. Counts this start: starts() is one more than it has. kNotFound: none
  // was written. kDataLoss: there was one, none can be read.
  Result<State> Read();
  int64_t starts() const { return starts_; }  // this one included
  // Overwrites the oldest one, with starts(); makes it larger when needed.
  Status Write(State state);

 private:
  FileSystem* const files_;
  const std::string folder_;
  const bool sync_;
  size_t next_slot_ = 0;
  int64_t starts_ = 1;
};

}  // namespace forebay::buffer
