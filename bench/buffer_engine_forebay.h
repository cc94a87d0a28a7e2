// Our buffer as an engine of the benchmark, in this process.
#pragma once

#include <memory>
#include <string>

#include "bench/buffer_engine.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::bench {

// Groups of one trajectory, taken oldest first and acknowledged as soon as they were copied out.
Result<std::unique_ptr<Engine>> MakeForebay(const std::string& folder,
                                            buffer::Durability durability);

}  // namespace forebay::bench
