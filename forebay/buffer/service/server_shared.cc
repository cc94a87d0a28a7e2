// The server's side of memory that is shared with clients on this machine.
//
// What a client writes into it may change at any time: it is read once, checked as any payload, and
// copied. A client that changes a payload before the answer damages its own record.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/server_impl.h"
#include "forebay/buffer/service/shared_area.h"

namespace forebay::buffer {
namespace {

constexpr uint64_t kReplyAreaBytesMax = uint64_t{64} << 20;
// A reply that is smaller goes through the socket: that is one copy of little.
constexpr size_t kLentBytesMin = 4096;

}  // namespace

Status ServerImpl::OnShare(Connection& c, std::string_view payload) {
  Result<AreaSizes> sizes = ParseAreaSizes(payload);
  if (!sizes.ok()) {
    Refuse(c, Refusal::kMessage, sizes.status());
    return OkStatus();
  }
  if (c.sharing != nullptr || !c.out.empty()) {
    Refuse(c, Refusal::kMessage,
           FailedPrecondition("memory is shared once, by the first request of a connection"));
    return OkStatus();
  }
  // No more appends than that can be under way.
  sizes->append_bytes = std::min(sizes->append_bytes, static_cast<uint64_t>(options_.credit_bytes));
  sizes->reply_bytes = std::min(sizes->reply_bytes, kReplyAreaBytesMax);
  const auto total = static_cast<int64_t>(sizes->total());
  std::unique_ptr<SharedArea> area;
  if (total > 0 && shared_bytes_ + total <= options_.shared_bytes_max) {
    Result<std::unique_ptr<SharedArea>> created = SharedArea::Create(*sizes);
    if (created.ok()) area = *std::move(created);
  }
  if (area != nullptr) {
    const std::string granted = EncodeAreaSizes(*sizes);
    const FrameHeaderBytes header = EncodeFrameHeader(
        {.length = static_cast<uint32_t>(granted.size()), .type = FrameType::kShared});
    const std::string frame = std::string(header.data(), header.size()) + granted;
    const ptrdiff_t sent = SendWithFd(c.stream->fd(), frame, area->fd());
    if (sent >= 0 && sent != static_cast<ptrdiff_t>(frame.size())) {
      Close(c);
      return OkStatus();
    }
    if (sent < 0) area.reset();
  }
  if (area == nullptr) {
    c.out.PutFrame({.type = FrameType::kShared}, EncodeAreaSizes({}));
    Touch(c);
    return OkStatus();
  }
  area->CloseFd();
  shared_bytes_ += total;
  c.sharing = std::make_unique<Sharing>(std::move(area));
  return OkStatus();
}

Status ServerImpl::OnAppendShared(Connection& c, const FrameHeader& header,
                                  std::string_view payload) {
  const Result<SharedPiece> piece = ParseSharedPiece(payload);
  const char* const at =
      piece.ok() ? c.sharing->area->Append(piece->offset, piece->bytes) : nullptr;
  if (at == nullptr) {
    Refuse(c, Refusal::kMessage, InvalidArgument("an append from outside of the shared memory"));
    return OkStatus();
  }
  return OnAppend(c, header, {at, piece->bytes});
}

Status ServerImpl::OnReplyReturned(Connection& c, std::string_view payload) {
  for (; payload.size() >= sizeof(uint64_t); payload.remove_prefix(sizeof(uint64_t))) {
    uint64_t offset = 0;
    std::memcpy(&offset, payload.data(), sizeof(offset));
    const auto lent = c.sharing->lent.find(offset);
    if (lent == c.sharing->lent.end()) break;
    c.sharing->replies.Give(offset, lent->second);
    c.sharing->lent.erase(lent);
  }
  if (!payload.empty()) {
    Refuse(c, Refusal::kMessage, InvalidArgument("a reply is returned that was not lent"));
  }
  return OkStatus();
}

char* ServerImpl::LendReply(Connection& c, size_t bytes, SharedPiece* piece) {
  if (c.sharing == nullptr || bytes < kLentBytesMin) return nullptr;
  const std::optional<uint64_t> offset = c.sharing->replies.Take(bytes);
  if (!offset.has_value()) return nullptr;
  c.sharing->lent[*offset] = bytes;
  *piece = {.offset = *offset, .bytes = bytes};
  return c.sharing->area->Reply(*offset, bytes);
}

}  // namespace forebay::buffer
