// Our buffer as an engine of the benchmark, in this process.
#pragma once

#include <memory>
#include <string>

#include "bench/buffer_engine.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::bench {

// Groups of one trajectory; a batch is committed as soon as it was copied out, as by a learner that
// takes a checkpoint after each step.
Result<std::unique_ptr<Engine>> MakeForebay(const std::string& folder,
                                            buffer::Durability durability);

}  // namespace forebay::bench
