// What the ledger's readers share.
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/buffer/buffer.h"

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

}  // namespace forebay::buffer
