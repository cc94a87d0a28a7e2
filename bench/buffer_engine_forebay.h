// Our buffer as engines of the benchmark: in this process, and served by another one.
//
// Groups of one trajectory that are dispatched by their append; readers take 64, copy them out and
// acknowledge them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bench/buffer_engine.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::bench {

Result<std::unique_ptr<Engine>> MakeForebay(const std::string& folder,
                                            buffer::Durability durability);

// A child of this program (ServeBuffer) over a Unix socket; all writers share one client.
Result<std::unique_ptr<Engine>> MakeServedForebay(const std::string& folder,
                                                  buffer::Durability durability);

// What the child does: serves an empty buffer in `folder` at `address` until it is killed.
// `durability`: "os" or "sync".
Status ServeBuffer(const std::string& folder, const std::string& address,
                   std::string_view durability);

}  // namespace forebay::bench
