#include "forebay/buffer/service/shared_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::buffer {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// Pieces do not share a line of the cache.
constexpr uint64_t kAlign = 64;

uint64_t Aligned(uint64_t bytes) {
  return (std::max<uint64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
}

// Room for one descriptor beside a message.
union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

}  // namespace

Result<std::unique_ptr<SharedArea>> SharedArea::Create(const AreaSizes& sizes) {
  Fd fd(memfd_create("forebay-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(sizes.total())) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Unavailable("no memory to share: " + ErrnoStatus("memfd", errno).message());
  }
  std::unique_ptr<SharedArea> area(new SharedArea(std::move(fd), sizes));
  FB_RETURN_IF_ERROR(area->MapMemory());
  return area;
}

Result<std::unique_ptr<SharedArea>> SharedArea::Map(Fd fd, const AreaSizes& sizes) {
  struct stat info{};
  if (!fd.valid() || fstat(fd.get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != sizes.total() ||
      (fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return DataLoss("the memory that the server shares is not what it says");
  }
  std::unique_ptr<SharedArea> area(new SharedArea(std::move(fd), sizes));
  FB_RETURN_IF_ERROR(area->MapMemory());
  area->CloseFd();
  return area;
}

Status SharedArea::MapMemory() {
  void* const memory =
      mmap(nullptr, sizes_.total(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) {
    return Unavailable("cannot map memory to share: " + ErrnoStatus("mmap", errno).message());
  }
  memory_ = static_cast<char*>(memory);
  return OkStatus();
}

SharedArea::~SharedArea() {
  if (memory_ != nullptr) munmap(memory_, sizes_.total());
}

AreaSpace::AreaSpace(uint64_t bytes) {
  if (const uint64_t end = bytes / kAlign * kAlign; end > 0) free_.push_back({0, end});
}

std::optional<uint64_t> AreaSpace::Take(uint64_t bytes) {
  const uint64_t size = Aligned(bytes);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->end - it->begin < size) continue;
    const uint64_t offset = it->begin;
    it->begin += size;
    if (it->begin == it->end) free_.erase(it);
    return offset;
  }
  return std::nullopt;
}

void AreaSpace::Give(uint64_t offset, uint64_t bytes) {
  const uint64_t end = offset + Aligned(bytes);
  const auto next = std::ranges::lower_bound(free_, offset, {}, &Extent::begin);
  FB_CHECK(next == free_.end() || end <= next->begin);
  const bool joins_next = next != free_.end() && next->begin == end;
  const bool joins_last = next != free_.begin() && std::prev(next)->end == offset;
  if (joins_next && joins_last) {
    std::prev(next)->end = next->end;
    free_.erase(next);
  } else if (joins_next) {
    next->begin = offset;
  } else if (joins_last) {
    std::prev(next)->end = end;
  } else {
    free_.insert(next, {offset, end});
  }
}

ptrdiff_t SendWithFd(int socket, std::string_view bytes, int fd) {
  Control control{};
  iovec area{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &area;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ptrdiff_t ReceiveWithFd(int socket, char* into, size_t bytes, Fd* fd) {
  Control control{};
  iovec area{into, bytes};
  msghdr message{};
  message.msg_iov = &area;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  const ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n <= 0) return n;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    int received = -1;
    std::memcpy(&received, CMSG_DATA(head), sizeof(received));
    *fd = Fd(received);
  }
  return n;
}

}  // namespace forebay::buffer
