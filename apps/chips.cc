#include "apps/chips.h"

#include <optional>
#include <string_view>

namespace forebay::apps {

std::optional<Chip> ChipOf(std::string_view topology) {
  struct Row {
    std::string_view name;
    Chip chip;
  };
  // Cloud TPU system architecture pages: bf16 peak, HBM, its bandwidth, bidirectional
  // interconnect bandwidth of a chip (half of it is sent).
  static constexpr Row kRows[] = {
      {"v4", {275e12, 32e9, 1228e9, 300e9 / 2}},
      {"v5e", {197e12, 16e9, 819e9, 200e9 / 2}},
      {"v5p", {459e12, 95e9, 2765e9, 600e9 / 2}},
      {"v6e", {918e12, 32e9, 1640e9, 448e9 / 2}},
  };
  const std::string_view name = topology.substr(0, topology.find(':'));
  for (const Row& row : kRows) {
    if (row.name == name) return row.chip;
  }
  return std::nullopt;
}

}  // namespace forebay::apps
