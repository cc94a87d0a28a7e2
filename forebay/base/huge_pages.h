// Large arrays in large pages: a stream through them then misses no address translation, which is
// worth a third of the memory's bandwidth and more.
#pragma once

#include <cstddef>
#include <memory>

#include "forebay/base/status.h"

namespace forebay {

// `bytes` zeros, aligned to 2 MiB, given back with the last owner. The pages are large where the
// system has such (transparent huge pages "always" or "madvise"), else as any. kResourceExhausted
// without memory.
Result<std::shared_ptr<std::byte>> AllocateHugePages(size_t bytes);

}  // namespace forebay
