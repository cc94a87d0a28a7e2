// SharedArea: memory that the server and a client on the same machine both see, so that a payload
// is copied once on each side and never goes through the socket.
//
// The server makes it and seals its size: no client can make an access of the server fail. The
// first part is the client's, for the payloads of its appends; the rest is the server's, for its
// replies. Who owns a part gives its pieces out (AreaSpace); the other side only reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::buffer {

// How the parts are divided.
struct AreaSizes {
  uint64_t append_bytes = 0, reply_bytes = 0;
  uint64_t total() const { return append_bytes + reply_bytes; }
};

class SharedArea {
 public:
  // The server's. kUnavailable: the machine has no room for it.
  static Result<std::unique_ptr<SharedArea>> Create(const AreaSizes& sizes);
  // The client's, of what the server sent. kDataLoss: it is not as large as said, or not sealed.
  static Result<std::unique_ptr<SharedArea>> Map(Fd fd, const AreaSizes& sizes);
  ~SharedArea();
  SharedArea(const SharedArea&) = delete;
  SharedArea& operator=(const SharedArea&) = delete;

  const AreaSizes& sizes() const { return sizes_; }
  // To be sent; closed by CloseFd.
  int fd() const { return fd_.get(); }
  void CloseFd() { fd_.Close(); }

  // `bytes` at `offset` of a part; nullptr when it is not inside.
  char* Append(uint64_t offset, uint64_t bytes) const {
    return Inside(offset, bytes, sizes_.append_bytes) ? memory_ + offset : nullptr;
  }
  char* Reply(uint64_t offset, uint64_t bytes) const {
    return Inside(offset, bytes, sizes_.reply_bytes) ? memory_ + sizes_.append_bytes + offset
                                                     : nullptr;
  }

 private:
  SharedArea(Fd fd, const AreaSizes& sizes) : fd_(std::move(fd)), sizes_(sizes) {}
  Status MapMemory();
  static bool Inside(uint64_t offset, uint64_t bytes, uint64_t size) {
    return offset <= size && bytes <= size - offset;
  }

  Fd fd_;
  const AreaSizes sizes_;
  char* memory_ = nullptr;
};

// The pieces of a part. First fit: what was given back last is mostly what is used next, while it
// is in the cache. Not thread-safe.
class AreaSpace {
 public:
  explicit AreaSpace(uint64_t bytes);
  // The offset of so many bytes; none: they do not fit.
  std::optional<uint64_t> Take(uint64_t bytes);
  // What Take gave, with the size that was asked for.
  void Give(uint64_t offset, uint64_t bytes);

 private:
  struct Extent {
    uint64_t begin, end;
  };
  std::vector<Extent> free_;  // by address, none next to another
};

// Sends `bytes`, a few, and the descriptor with them. As sendmsg: -1 when nothing was sent, for
// example because too many descriptors are on their way to those who do not read.
ptrdiff_t SendWithFd(int socket, std::string_view bytes, int fd);
// Reads up to `bytes`, and the descriptor that came with the first of them, if any. As recvmsg.
ptrdiff_t ReceiveWithFd(int socket, char* into, size_t bytes, Fd* fd);

}  // namespace forebay::buffer
