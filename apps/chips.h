// What a TPU chip can do, by its maker's data sheets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace forebay::apps {

struct Chip {
  double bf16_flops = 0;    // a second
  double memory_bytes = 0;  // HBM
  double memory_rate = 0;   // bytes a second
  double link_rate = 0;     // bytes a second that it sends to all its neighbours together
};

// By the generation in a topology's name ("v5p" of "v5p:4x4x8"). nullopt: not in the table.
std::optional<Chip> ChipOf(std::string_view topology);

}  // namespace forebay::apps
