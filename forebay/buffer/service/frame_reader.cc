#include "forebay/buffer/service/frame_reader.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/buffer/service/frame.h"

namespace forebay::buffer {
namespace {

// A block that is larger is not kept for the next frame: idle connections should cost little.
constexpr size_t kKeptBytes = size_t{256} << 10;

}  // namespace

int FrameReader::Prepare(std::span<char> scratch, iovec out[2]) {
  if (have_ == 0) {
    out[0] = {scratch.data(), scratch.size()};
    return 1;
  }
  out[0] = {block_.get() + have_, need_ - have_};
  out[1] = {scratch.data(), scratch.size()};
  return 2;
}

void FrameReader::Reserve(size_t bytes) {
  if (capacity_ >= bytes) return;
  auto larger = std::make_shared_for_overwrite<char[]>(bytes);
  if (have_ > 0) std::memcpy(larger.get(), block_.get(), have_);
  block_ = std::move(larger);
  capacity_ = bytes;
}

Status FrameReader::Grow() {
  FB_ASSIGN_OR_RETURN(const FrameHeader header,
                      ParseFrameHeader({block_.get(), kFrameHeaderBytes}, length_max_));
  need_ = kFrameHeaderBytes + header.length;
  Reserve(need_);
  return OkStatus();
}

Status FrameReader::Whole(const OnFrame& on_frame) {
  FB_ASSIGN_OR_RETURN(const FrameHeader header,
                      ParseFrameHeader({block_.get(), kFrameHeaderBytes}, length_max_));
  const std::string_view payload(block_.get() + kFrameHeaderBytes, header.length);
  FB_RETURN_IF_ERROR(CheckPayload(header, payload));
  in_block_ = true;
  const Status status = on_frame(header, payload);
  in_block_ = false;
  have_ = 0;
  need_ = kFrameHeaderBytes;
  if (capacity_ > kKeptBytes) {
    block_.reset();
    capacity_ = 0;
  }
  return status;
}

std::shared_ptr<char[]> FrameReader::TakeBlock() {
  if (!in_block_) return nullptr;
  capacity_ = 0;
  return std::exchange(block_, nullptr);
}

Status FrameReader::Commit(std::span<char> scratch, size_t bytes, const OnFrame& on_frame) {
  if (have_ > 0) {
    const size_t first = std::min(bytes, need_ - have_);
    have_ += first;
    bytes -= first;
    if (have_ < need_) return OkStatus();
  }
  std::string_view rest(scratch.data(), bytes);
  if (have_ > 0) {
    if (need_ == kFrameHeaderBytes) {
      FB_RETURN_IF_ERROR(Grow());
      const size_t more = std::min(rest.size(), need_ - have_);
      if (more > 0) std::memcpy(block_.get() + have_, rest.data(), more);
      have_ += more;
      rest.remove_prefix(more);
      if (have_ < need_) return OkStatus();
    }
    FB_RETURN_IF_ERROR(Whole(on_frame));
  }
  while (rest.size() >= kFrameHeaderBytes) {
    FB_ASSIGN_OR_RETURN(const FrameHeader header,
                        ParseFrameHeader(rest.substr(0, kFrameHeaderBytes), length_max_));
    const size_t size = kFrameHeaderBytes + header.length;
    if (rest.size() < size) break;
    const std::string_view payload = rest.substr(kFrameHeaderBytes, header.length);
    FB_RETURN_IF_ERROR(CheckPayload(header, payload));
    FB_RETURN_IF_ERROR(on_frame(header, payload));
    rest.remove_prefix(size);
  }
  if (rest.empty()) return OkStatus();
  Reserve(kFrameHeaderBytes);
  // Grow reads the header from the block.
  const size_t head = std::min(rest.size(), kFrameHeaderBytes);
  std::memcpy(block_.get(), rest.data(), head);
  have_ = head;
  need_ = kFrameHeaderBytes;
  if (head < kFrameHeaderBytes) return OkStatus();
  FB_RETURN_IF_ERROR(Grow());
  std::memcpy(block_.get() + head, rest.data() + head, rest.size() - head);
  have_ = rest.size();
  return OkStatus();
}

}  // namespace forebay::buffer
