#include "forebay/base/huge_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "forebay/base/status.h"

namespace forebay {

Result<std::shared_ptr<std::byte>> AllocateHugePages(size_t bytes) {
  constexpr size_t kPage = size_t{2} << 20;
  const size_t size = (bytes + kPage - 1) / kPage * kPage;
  if (bytes == 0 || size < bytes || size > SIZE_MAX - kPage) {
    return ResourceExhausted(fmt::format("cannot allocate {} bytes", bytes));
  }
  // One page more, of which what lies before and behind the aligned part goes back at once.
  void* mapped =
      mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return ResourceExhausted(fmt::format("no memory for {} bytes", bytes));
  }
  auto* first = static_cast<std::byte*>(mapped);
  const size_t before = (kPage - reinterpret_cast<uintptr_t>(first) % kPage) % kPage;
  if (before > 0) munmap(first, before);
  std::byte* start = first + before;
  munmap(start + size, kPage - before);
  madvise(start, size, MADV_HUGEPAGE);  // advice: a system without them is as right
  return std::shared_ptr<std::byte>(start, [size](std::byte* memory) { munmap(memory, size); });
}

}  // namespace forebay
