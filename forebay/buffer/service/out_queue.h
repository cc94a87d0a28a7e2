// OutQueue: what a connection has yet to send. Small frames are gathered; large payloads are sent
// from where they lie and kept alive until they are gone.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {

class OutQueue {
 public:
  // Copies.
  void Put(std::string_view bytes);
  void PutFrame(FrameHeader header, std::string_view payload);
  // `bytes` stay where they are; `memory` keeps them.
  void PutView(std::string_view bytes, std::shared_ptr<const void> memory);

  bool empty() const { return bytes_ == 0; }
  size_t bytes() const { return bytes_; }
  // Of them, those that are held here.
  size_t copied_bytes() const { return copied_bytes_; }
  // Of everything that ever went in or out: to know when a frame has left.
  uint64_t put_total() const { return sent_total_ + bytes_; }
  uint64_t sent_total() const { return sent_total_; }

  // Sends until the queue is empty (kOk) or the stream takes no more.
  Io Send(Stream& stream);

 private:
  struct Piece {
    std::string owned;
    std::string_view view;  // of owned, or of memory
    std::shared_ptr<const void> memory;
  };
  void Drop(size_t bytes);

  std::deque<Piece> pieces_;
  std::string spare_;  // an emptied string, for its capacity
  size_t head_ = 0;    // bytes of the first piece that are gone
  size_t bytes_ = 0, copied_bytes_ = 0;
  uint64_t sent_total_ = 0;
};

}  // namespace forebay::buffer
