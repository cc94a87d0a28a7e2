// RunWindow: one short measurement of one engine.
//
// Closed loop: every writer has one record outstanding, so latency and throughput belong together.
// At most kOutstandingRecordsMax records are acknowledged and not consumed; a writer waits for that
// room outside of the measured time of its insert. Readers take exact batches of 64 and copy them
// out. The runner checks that every record comes back once, unchanged, and with one reader in the
// order of its writer; an engine that fails that is an error, not a figure.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/buffer_engine.h"
#include "bench/buffer_payload.h"
#include "forebay/base/status.h"

namespace forebay::bench {

inline constexpr int64_t kOutstandingRecordsMax = 4096;

struct WindowOptions {
  int writers = 1;
  int readers = 1;
  RecordSizes sizes = RecordSizes::k16KiB;
  double warmup_s = 0.3;  // not measured
  double seconds = 1.0;
};

struct Percentiles {
  double p50_us = 0, p99_us = 0, p999_us = 0;
  int64_t count = 0;
};
// Of nanoseconds, nearest rank; all zero without samples.
Percentiles PercentilesOf(std::vector<uint32_t> nanoseconds);

struct WindowResult {
  double appends_per_s = 0, bytes_per_s = 0, sampled_per_s = 0;
  Percentiles insert;  // of one insert until it was acknowledged
  Percentiles sample;  // of one batch of 64
};

// Opens, measures and closes the engine. The first error of the engine or of the check ends it.
Result<WindowResult> RunWindow(Engine& engine, const WindowOptions& options);

}  // namespace forebay::bench
