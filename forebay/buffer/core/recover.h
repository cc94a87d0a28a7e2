// Recover: from the files of a log to the state that it stands for.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/table/table.h"

namespace forebay::buffer {

struct Recovered {
  Table table;  // its pending trajectories are loaded
  Recovery report;
  int64_t last_sequence = 0;
  uint32_t next_segment = 1;
  std::map<uint32_t, int64_t> segments;  // number -> bytes on disk
};

// Reads every segment in options.folder; the caller holds its lock. Damaged bytes are copied to
// folder/quarantine and the rest is kept. Changes no segment but for cutting the unused end of the
// last. Errors: as Buffer::Open.
Result<Recovered> Recover(FileSystem& files, const BufferOptions& options, int64_t committed_batch);

// What a trajectory takes in memory.
int64_t MemoryBytes(const Trajectory& trajectory);

}  // namespace forebay::buffer
