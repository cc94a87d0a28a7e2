// A replay as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/replay.h"

namespace forebay::apps {
namespace {

std::string Line(int64_t step, const std::string& what, const std::string& recorded,
                 const std::string& replayed, bool equal) {
  return fmt::format("{:<6} {:<25} {:<32}  {:<32}  {}\n", step, what, recorded, replayed,
                     equal ? "yes" : "NO");
}

}  // namespace

// The step that was asked for in full; of the steps on the way the weights, and what differs.
std::string FormatReplay(const Replay& r) {
  std::string out = fmt::format("{:<6} {:<25} {:<32}  {:<32}  {}\n", "step", "what", "recorded",
                                "replayed", "equal");
  for (const ReplayRow& row : r.rows) {
    if (row.step < r.step && row.equal && !row.what.starts_with("weights")) continue;
    out += Line(row.step, row.what, row.recorded, row.replayed, row.equal);
  }
  for (const std::string& note : r.notes) out += "note: " + note + "\n";
  if (r.rows.empty()) return out + "nothing was compared\n";
  const auto differing = std::ranges::count(r.rows, false, &ReplayRow::equal);
  if (differing == 0) {
    return out + fmt::format("step {} was repeated bit for bit from {}: {} comparisons\n", r.step,
                             r.from_step == 0
                                 ? "the start of the run"
                                 : fmt::format("the checkpoint of step {}", r.from_step),
                             r.rows.size());
  }
  return out + fmt::format("{} of {} comparisons differ\n", differing, r.rows.size());
}

std::string ReplayJson(const Replay& r) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ReplayRow& row : r.rows) {
    rows.push_back({{"step", row.step},
                    {"what", row.what},
                    {"recorded", row.recorded},
                    {"replayed", row.replayed},
                    {"equal", row.equal}});
  }
  const nlohmann::json out = {{"step", r.step},
                              {"from_step", r.from_step},
                              {"equal", r.first_difference() == nullptr},
                              {"rows", rows},
                              {"notes", r.notes}};
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string FormatReplayable(const ReplayableSteps& steps) {
  std::string out =
      fmt::format("steps {} to {} are recorded\n", steps.first_recorded, steps.last_recorded);
  if (steps.ranges.empty()) return out + "none can be replayed: their batches are gone\n";
  for (const ReplayableRange& range : steps.ranges) {
    out += fmt::format("steps {} to {} can be replayed from {}\n", range.first, range.last,
                       range.from_step == 0
                           ? "the weights that the run began with"
                           : fmt::format("the checkpoint of step {}", range.from_step));
  }
  return out;
}

}  // namespace forebay::apps
