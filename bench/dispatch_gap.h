// How long a learner's device has nothing to do between the steps of a run whose batches are there
// in time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "bench/harness.h"
#include "bench/smollm2.h"
#include "forebay/base/status.h"
#include "forebay/xla/client.h"

namespace forebay::bench {

struct DispatchGapOptions {
  int64_t steps = 4;        // measured, after one that is not
  bool checkpoint = false;  // write one on the way, to a scratch folder
};

// A run (Learner::Run) over a buffer in memory: 1,024 tokens a step, weights copied, digested and
// published at each. -> dispatch_gap_fraction (idle / (compute + idle)) and what it is made of.
Result<nlohmann::ordered_json> MeasureDispatchGap(const DispatchGapOptions& options,
                                                  const BenchOptions& bench, const SmolLm2& smol,
                                                  xla::Client& client);

}  // namespace forebay::bench
