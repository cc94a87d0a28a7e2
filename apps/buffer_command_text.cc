#include "apps/buffer_command_text.h"

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {

std::string BytesText(int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string IdText(const TrajectoryId& id) {
  return fmt::format("trajectory {} (group {}, member {})", id.trajectory_id, id.group_id,
                     id.member);
}

nlohmann::json IdJson(const TrajectoryId& id) {
  return {{"trajectory_id", id.trajectory_id},
          {"group_id", id.group_id},
          {"member", id.member},
          {"attempt", id.attempt},
          {"task_id", id.task_id}};
}

std::string JsonText(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void PrintNotes(buffer::LogReader& reader) {
  for (const std::string& note : reader.TakeNotes()) {
    std::fprintf(stderr, "note: %s\n", note.c_str());
  }
}

}  // namespace forebay::apps
