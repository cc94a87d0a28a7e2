// ClientArea: a client's use of the memory that it shares with the server, for one connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/shared_area.h"

namespace forebay::buffer {

// Thread-safe. The owners of replies keep it alive, beyond its connection if need be.
class ClientArea : public std::enable_shared_from_this<ClientArea> {
 public:
  explicit ClientArea(std::unique_ptr<SharedArea> area);

  // Copies an append's payload in; none: no room now, or not worth it.
  std::optional<uint64_t> Put(std::string_view payload);
  // The server has done with it.
  void Free(uint64_t offset, uint64_t bytes);

  // A reply where it lies; nullptr: not inside. It is the server's again when the last owner goes.
  std::shared_ptr<const char> Reply(const SharedPiece& piece);
  // The offsets of replies without owners since the last call: to be told to the server.
  std::vector<uint64_t> TakeReturned();

 private:
  const std::unique_ptr<SharedArea> area_;
  Mutex mutex_;
  AreaSpace appends_ FB_GUARDED_BY(mutex_);
  std::vector<uint64_t> returned_ FB_GUARDED_BY(mutex_);
  std::atomic<bool> any_returned_{false};
};

}  // namespace forebay::buffer
