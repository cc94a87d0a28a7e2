// What of the coordinator a checkpoint keeps.
//
//   {"quarantined_tasks": [3, 8],
//    "faults": [{"group": 12, "total": 2, "members": [[0, 1], [3, 1]]}, ...]}
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/control/coordinator.h"

namespace forebay::control {

using nlohmann::json;

std::string Coordinator::SaveState() const {
  json faults = json::array();
  MutexLock lock(mutex_);
  for (const auto& [group_id, of_group] : faults_) {
    json members = json::array();
    for (const auto& [member, count] : of_group.by_member) members.push_back({member, count});
    faults.push_back(
        {{"group", group_id}, {"total", of_group.total}, {"members", std::move(members)}});
  }
  return json{{"quarantined_tasks", quarantined_}, {"faults", std::move(faults)}}.dump();
}

Status Coordinator::RestoreState(std::string_view text) {
  std::set<int64_t> quarantined;
  std::map<int64_t, Faults> faults;
  try {
    const json state = json::parse(text);
    if (!state.is_object()) return DataLoss("the coordinator's state is not a JSON object");
    if (state.contains("quarantined_tasks")) {
      quarantined = state["quarantined_tasks"].get<std::set<int64_t>>();
    }
    for (const json& entry : state.value("faults", json::array())) {
      if (faults.size() >= kFaultGroupsMax) break;
      Faults& of_group = faults[entry.at("group").get<int64_t>()];
      of_group.total = entry.at("total").get<int64_t>();
      for (const json& member : entry.at("members")) {
        of_group.by_member[member.at(0).get<int32_t>()] = member.at(1).get<uint64_t>();
      }
    }
  } catch (const std::exception& e) {
    return DataLoss(std::string("the coordinator's state is damaged: ") + e.what());
  }
  MutexLock lock(mutex_);
  quarantined_ = std::move(quarantined);
  faults_ = std::move(faults);
  return OkStatus();
}

}  // namespace forebay::control
