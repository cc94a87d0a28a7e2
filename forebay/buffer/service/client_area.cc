#include "forebay/buffer/service/client_area.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/shared_area.h"

namespace forebay::buffer {
namespace {

// Less goes through the socket at the same cost.
constexpr size_t kSharedBytesMin = 1024;

}  // namespace

ClientArea::ClientArea(std::unique_ptr<SharedArea> area)
    : area_(std::move(area)), appends_(area_->sizes().append_bytes) {}

std::optional<uint64_t> ClientArea::Put(std::string_view payload) {
  if (payload.size() < kSharedBytesMin) return std::nullopt;
  std::optional<uint64_t> offset;
  {
    const MutexLock lock(mutex_);
    offset = appends_.Take(payload.size());
  }
  if (offset.has_value()) {
    std::memcpy(area_->Append(*offset, payload.size()), payload.data(), payload.size());
  }
  return offset;
}

void ClientArea::Free(uint64_t offset, uint64_t bytes) {
  const MutexLock lock(mutex_);
  appends_.Give(offset, bytes);
}

std::shared_ptr<const char> ClientArea::Reply(const SharedPiece& piece) {
  const char* const at = area_->Reply(piece.offset, piece.bytes);
  if (at == nullptr) return nullptr;
  return {at, [self = shared_from_this(), offset = piece.offset](const char* /*at*/) {
            const MutexLock lock(self->mutex_);
            self->returned_.push_back(offset);
            self->any_returned_.store(true, std::memory_order_relaxed);
          }};
}

std::vector<uint64_t> ClientArea::TakeReturned() {
  if (!any_returned_.load(std::memory_order_relaxed)) return {};
  const MutexLock lock(mutex_);
  any_returned_.store(false, std::memory_order_relaxed);
  return std::exchange(returned_, {});
}

}  // namespace forebay::buffer
