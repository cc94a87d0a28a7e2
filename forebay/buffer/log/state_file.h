// The state files: two slots that are overwritten in turn, each a snapshot of the Table after the
// records up to a sequence. One of them is always whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"

namespace forebay::buffer {

struct State {
  int64_t sequence = 0;  // the snapshot has the effect of every record up to it ...
  // ... but of trajectories from this one on, which were being written: they are in flight in it.
  int64_t replay_from = 0;
  std::string table;  // Table::EncodeSnapshot
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
  // The newer of the two. kNotFound: neither was written. kDataLoss: there was one, none can be
  // read.
  Result<State> Read();
  // Overwrites the older one; makes it larger when needed.
  Status Write(const State& state);

 private:
  FileSystem* const files_;
  const std::string folder_;
  const bool sync_;
  int next_slot_ = 0;
};

}  // namespace forebay::buffer
