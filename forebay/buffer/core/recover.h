// Recovery: from what lies in the folder to a Table, naming everything that was found wrong.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/table/table.h"

namespace forebay::buffer {

struct Recovered {
  explicit Recovered(int32_t group_size) : table(group_size) {}

  Table table;
  Recovery report;
  int64_t last_sequence = 0;
  uint32_t next_number = 1, next_file_id = 1;
  std::vector<KnownSegment> segments;
};

// Reads the folder. What was damaged is copied to its sub-folder "quarantine"; segments that a
// crash left open get their index. Attempts in flight are over; batches after `committed_batch` are
// replays. All of this is durable when it returns, and segments that nothing needs are gone: a
// start has room for its own. Errors as for Buffer::Open.
Result<Recovered> Recover(FileSystem& files, StateFiles& states, const BufferOptions& options,
                          int64_t committed_batch);

}  // namespace forebay::buffer
