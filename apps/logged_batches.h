// LoggedBatches: the batches of a run as its buffer's log holds them, read without changing
// anything there.
#pragma once

#include <cstdint>
#include <memory>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::apps {

// Not thread-safe.
class LoggedBatches {
 public:
  // `options` are those of the run's buffer. kNotFound: the run keeps no log.
  static Result<std::unique_ptr<LoggedBatches>> Open(const buffer::BufferOptions& options);
  virtual ~LoggedBatches() = default;

  // A batch as it was leased. Blocks. kNotFound: it is no longer in the log (released and
  // recycled), or was never leased. kDataLoss: what of it is damaged.
  virtual Result<buffer::Batch> Read(int64_t sequence) = 0;
  // How many of the batches `sequence` + 1 to `last` can be read, without a gap. Blocks.
  virtual Result<int64_t> CountAfter(int64_t sequence, int64_t last) = 0;
};

}  // namespace forebay::apps
