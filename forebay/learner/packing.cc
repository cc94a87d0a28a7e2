#include "forebay/learner/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::learner {

Result<std::vector<Row>> PackRows(std::span<const int64_t> lengths, int64_t row_tokens) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] >= 1 && lengths[i] <= row_tokens) continue;
    return InvalidArgument(fmt::format(
        "sequence {} has {} tokens and cannot be packed into rows of {}; every token is trained on "
        "or "
        "attended to, so nothing is cut: raise the largest row length or lower the token budget of "
        "an episode",
        i, lengths[i], row_tokens));
  }
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });

  std::vector<Row> rows;
  std::set<std::pair<int64_t, size_t>> room;  // (free columns, row) of every row
  for (const int32_t sequence : order) {
    const int64_t length = lengths[static_cast<size_t>(sequence)];
    auto best = room.lower_bound({length, 0});
    if (best == room.end()) {
      best = room.emplace(row_tokens, rows.size()).first;
      rows.emplace_back();
    }
    const auto [free, row] = *best;
    room.erase(best);
    rows[row].push_back({sequence, static_cast<int32_t>(row_tokens - free)});
    room.emplace(free - length, row);
  }
  return rows;
}

}  // namespace forebay::learner
