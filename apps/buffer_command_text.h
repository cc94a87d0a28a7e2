// How the buffer commands print what they found.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {

std::string BytesText(int64_t bytes);        // "64.0 MiB"
std::string IdText(const TrajectoryId& id);  // "trajectory 12 (group 3, member 1)"
nlohmann::json IdJson(const TrajectoryId& id);
// One line; text that is not UTF-8 gets replacement characters.
std::string JsonText(const nlohmann::json& json);
// What the reader could not read, to stderr.
void PrintNotes(buffer::LogReader& reader);

}  // namespace forebay::apps
