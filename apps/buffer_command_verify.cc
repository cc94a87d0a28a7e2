// forebay buffer verify and repair: what is damaged, and what can be done about it.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/buffer_command.h"
#include "apps/buffer_command_text.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/log_repair.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

using buffer::LogDamage;
using buffer::LogReader;
using buffer::RepairAction;
using buffer::RepairReport;

constexpr size_t kNamedMax = 8;

std::string Where(const std::string& file, uint32_t segment, int64_t offset, int64_t bytes) {
  std::string text = file;
  if (segment != 0) text += fmt::format(" (segment {})", segment);
  if (bytes > 0) text += fmt::format(", {} bytes at {}", bytes, offset);
  return text;
}

std::string LostText(const std::vector<TrajectoryId>& lost) {
  std::string text;
  for (size_t i = 0; i < std::min(lost.size(), kNamedMax); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", IdText(lost[i]));
  }
  if (lost.size() > kNamedMax) text += fmt::format(" and {} more", lost.size() - kNamedMax);
  return text;
}

nlohmann::json LostJson(const std::vector<TrajectoryId>& lost) {
  nlohmann::json out = nlohmann::json::array();
  for (const TrajectoryId& id : lost) out.push_back(IdJson(id));
  return out;
}

void Print(const LogDamage& damage) {
  std::string text =
      fmt::format("{}  {}: {}", damage.harmless ? "note   " : "DAMAGED",
                  Where(damage.file, damage.segment, damage.offset, damage.bytes), damage.what);
  if (damage.records > 0) text += fmt::format("; lost: {} records or more", damage.records);
  if (!damage.lost.empty()) text += ", of them " + LostText(damage.lost);
  std::puts(text.c_str());
}

nlohmann::json ToJson(const LogDamage& damage) {
  return {{"file", damage.file},   {"segment", damage.segment},  {"offset", damage.offset},
          {"bytes", damage.bytes}, {"records", damage.records},  {"lost", LostJson(damage.lost)},
          {"what", damage.what},   {"harmless", damage.harmless}};
}

void Print(const RepairAction& action, bool dry_run) {
  std::string text =
      fmt::format("{}{}: {}", dry_run ? "would do  " : "done  ",
                  Where(action.file, action.segment, action.offset, action.bytes), action.what);
  if (!action.lost.empty()) text += "; lost: " + LostText(action.lost);
  if (!action.kept_as.empty()) text += "; its bytes: " + action.kept_as;
  std::puts(text.c_str());
}

nlohmann::json ToJson(const RepairAction& action) {
  return {{"file", action.file},      {"segment", action.segment}, {"offset", action.offset},
          {"bytes", action.bytes},    {"what", action.what},       {"lost", LostJson(action.lost)},
          {"kept_as", action.kept_as}};
}

}  // namespace

Status BufferVerify(const BufferVerifyCommand& command) {
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, LogReader::Open(command.folder));
  buffer::VerifyTotals totals;
  nlohmann::json found = nlohmann::json::array();
  FB_RETURN_IF_ERROR(reader->Verify(
      [&](const LogDamage& damage) {
        if (command.json) {
          found.push_back(ToJson(damage));
        } else {
          Print(damage);
        }
      },
      &totals));
  if (command.json) {
    std::puts(JsonText({{"folder", reader->folder()},
                        {"segments", totals.segments},
                        {"records", totals.records},
                        {"trajectories", totals.trajectories},
                        {"bytes", totals.bytes},
                        {"damaged", totals.damaged},
                        {"found", found}})
                  .c_str());
  } else {
    std::printf("%lld segments, %lld records (%lld trajectories), %s: %s\n",
                static_cast<long long>(totals.segments), static_cast<long long>(totals.records),
                static_cast<long long>(totals.trajectories), BytesText(totals.bytes).c_str(),
                totals.damaged == 0 ? "every checksum is right" : "DAMAGED");
  }
  PrintNotes(*reader);
  if (totals.damaged == 0) return OkStatus();
  return DataLoss(fmt::format(
      "the buffer in '{}' is damaged in {} place{}: `forebay buffer repair {}` puts what is "
      "damaged in quarantine and keeps the rest",
      reader->folder(), totals.damaged, totals.damaged == 1 ? "" : "s", reader->folder()));
}

Status BufferRepair(const BufferRepairCommand& command) {
  FB_ASSIGN_OR_RETURN(const RepairReport report,
                      buffer::RepairLog(command.folder, command.dry_run));
  if (command.json) {
    nlohmann::json actions = nlohmann::json::array();
    for (const RepairAction& action : report.actions) actions.push_back(ToJson(action));
    std::puts(
        JsonText(
            {{"dry_run", command.dry_run}, {"actions", actions}, {"unrepaired", report.unrepaired}})
            .c_str());
  } else {
    for (const RepairAction& action : report.actions) Print(action, command.dry_run);
    if (report.actions.empty() && report.unrepaired.empty()) std::puts("nothing to repair");
  }
  if (report.unrepaired.empty()) return OkStatus();
  std::string text = report.unrepaired.front();
  if (report.unrepaired.size() > 1) {
    text += fmt::format("; and {} more (--json lists them)", report.unrepaired.size() - 1);
  }
  return DataLoss(text);
}

}  // namespace forebay::apps
