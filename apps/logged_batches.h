// The batches of a run as its buffer's log holds them, read without changing anything there.
#pragma once

#include <cstdint>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::apps {

// A batch as it was leased. `options` are those of the run's buffer. Blocks. kNotFound: it is no
// longer in the log (released and recycled), or was never leased. kDataLoss: what of it is damaged.
Result<buffer::Batch> ReadLoggedBatch(const buffer::BufferOptions& options, int64_t sequence);

// How many batches that follow `sequence` without a gap can be read. Blocks.
Result<int64_t> ReadableBatchesAfter(const buffer::BufferOptions& options, int64_t sequence);

}  // namespace forebay::apps
