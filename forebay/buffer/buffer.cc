#include "forebay/buffer/buffer.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/file.h"

namespace forebay::buffer {

std::string_view RejectReasonName(RejectReason reason) {
  constexpr std::array<std::string_view, kRejectReasons> kNames = {
      "stale", "outcome", "no_loss_tokens", "lost_in_crash", "quarantined", "closed"};
  const auto index = static_cast<size_t>(reason);
  FB_CHECK(index < kNames.size(), "a reason outside of its list");
  return kNames[index];
}

int64_t Ledger::rejected_total() const {
  return std::accumulate(rejected.begin(), rejected.end(), int64_t{0});
}

Result<std::unique_ptr<Buffer>> Buffer::Open(const BufferOptions& options, int64_t committed_batch,
                                             BufferListener listener, Recovery* recovery) {
  std::unique_ptr<FileSystem> files = MakeFileSystem();
  FB_ASSIGN_OR_RETURN(std::unique_ptr<Core> core, Core::Open(files.get(), options, committed_batch,
                                                             std::move(listener), recovery));
  core->Own(std::move(files));
  return std::unique_ptr<Buffer>(std::move(core));
}

}  // namespace forebay::buffer
