#include "forebay/buffer/service/out_queue.h"

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/stream.h"

namespace forebay::buffer {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kPiecesAtOnce = 128;

}  // namespace

void OutQueue::Put(std::string_view bytes) {
  if (bytes.empty()) return;
  if (pieces_.empty() || pieces_.back().memory != nullptr ||
      pieces_.back().owned.size() + bytes.size() > kPieceBytes) {
    pieces_.emplace_back();
    pieces_.back().owned = std::exchange(spare_, std::string());
  }
  Piece& piece = pieces_.back();
  piece.owned.append(bytes);
  bytes_ += bytes.size();
  copied_bytes_ += bytes.size();
}

void OutQueue::PutFrame(FrameHeader header, std::string_view payload) {
  header.length = static_cast<uint32_t>(payload.size());
  const FrameHeaderBytes bytes = EncodeFrameHeader(header);
  Put({bytes.data(), bytes.size()});
  Put(payload);
}

void OutQueue::PutView(std::string_view bytes, std::shared_ptr<const void> memory) {
  if (bytes.empty()) return;
  pieces_.push_back({.owned = {}, .view = bytes, .memory = std::move(memory)});
  bytes_ += bytes.size();
}

Io OutQueue::Send(Stream& stream) {
  Io total;
  while (!pieces_.empty()) {
    std::array<iovec, kPiecesAtOnce> areas;
    size_t n = 0;
    size_t skip = head_;
    for (const Piece& piece : pieces_) {
      if (n == areas.size()) break;
      const std::string_view bytes = piece.memory != nullptr ? piece.view : piece.owned;
      areas[n++] = {const_cast<char*>(bytes.data()) + skip, bytes.size() - skip};
      skip = 0;
    }
    const Io io = stream.Write({areas.data(), n});
    if (io.state != Io::State::kOk) {
      total.state = io.state;
      return total;
    }
    total.bytes += io.bytes;
    Drop(io.bytes);
  }
  return total;
}

void OutQueue::Drop(size_t bytes) {
  bytes_ -= bytes;
  sent_total_ += bytes;
  while (bytes > 0) {
    Piece& first = pieces_.front();
    const size_t size = (first.memory != nullptr ? first.view.size() : first.owned.size()) - head_;
    if (bytes < size) {
      head_ += bytes;
      return;
    }
    bytes -= size;
    head_ = 0;
    if (first.memory == nullptr) {
      copied_bytes_ -= first.owned.size();
      spare_ = std::move(first.owned);
      spare_.clear();
    }
    pieces_.pop_front();
  }
}

}  // namespace forebay::buffer
