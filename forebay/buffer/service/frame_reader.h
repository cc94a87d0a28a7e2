// FrameReader: cuts the bytes of one connection into frames, without copying what arrived whole.
//
// Bytes are read into a scratch area that many connections share; only the frame at its end that is
// not whole yet is kept here, and the next read puts its rest right behind it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/buffer/service/frame.h"

namespace forebay::buffer {

class FrameReader {
 public:
  // Gets each whole frame; the payload is valid during the call. An error ends the connection.
  using OnFrame = std::function<Status(const FrameHeader&, std::string_view payload)>;

  explicit FrameReader(uint32_t length_max) : length_max_(length_max) {}

  // Where the next bytes of the connection go: one or two areas; returns how many.
  int Prepare(std::span<char> scratch, iovec out[2]);
  // `bytes` were read into them. Errors of ParseFrameHeader, CheckPayload and on_frame.
  Status Commit(std::span<char> scratch, size_t bytes, const OnFrame& on_frame);

  // Bytes of an unfinished frame are here.
  bool partial() const { return have_ > 0; }
  void set_length_max(uint32_t length_max) { length_max_ = length_max; }

  // During on_frame: the payload as an owner, if the frame came in pieces (large ones do); else
  // null, and the caller must copy.
  std::shared_ptr<char[]> TakeBlock();

 private:
  Status Whole(const OnFrame& on_frame);
  // The header is here: sees to room for the rest.
  Status Grow();
  void Reserve(size_t bytes);

  uint32_t length_max_;
  std::shared_ptr<char[]> block_;  // header and payload of the unfinished frame
  size_t capacity_ = 0;
  size_t have_ = 0;
  size_t need_ = kFrameHeaderBytes;
  bool in_block_ = false;
};

}  // namespace forebay::buffer
