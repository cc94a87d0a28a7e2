// Transport: how messages reach an MCP server and its replies come back.
#pragma once

#include <cstddef>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/mcp/messages.h"

namespace forebay::env::mcp {

// On a loop. Requests may overlap; a coroutine that waits may be dropped. Once broken it stays so.
class Transport {
 public:
  virtual ~Transport() = default;

  // `params_bytes` is about how long `params` are as text. kUnavailable, kDataLoss (then it is
  // broken), kDeadlineExceeded.
  virtual Task<Result<Reply>> Request(std::string method, Json params, size_t params_bytes,
                                      TimePoint deadline) = 0;
  virtual Task<Status> Notify(std::string method, Json params, TimePoint deadline) = 0;
  // What was agreed on; the requests before say nothing of it.
  virtual void UseVersion(const std::string& version) = 0;

  virtual bool broken() const = 0;
  // Ends the connection, by force at the deadline. Nothing may be asked after it.
  virtual Task<void> End(TimePoint deadline) = 0;
  // The same at once; may block for milliseconds.
  virtual void Kill() = 0;
};

}  // namespace forebay::env::mcp
