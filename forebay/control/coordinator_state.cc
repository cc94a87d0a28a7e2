// What of the coordinator a checkpoint keeps.
//
//   {"quarantined_tasks": [3, 8],
//    "faults": [{"group": 12, "members": [[0, 1], [3, 1]]}, ...]}
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/control/coordinator.h"

namespace forebay::control {

using nlohmann::json;

namespace {

// Throws, as json does, for anything else: a number out of range would not.
int64_t Integer(const json& value) {
  if (!value.is_number_integer()) throw std::invalid_argument("not a whole number");
  return value.get<int64_t>();
}

}  // namespace

std::string Coordinator::SaveState() const {
  json faults = json::array();
  MutexLock lock(mutex_);
  for (const auto& [group_id, of_group] : faults_) {
    json members = json::array();
    for (const auto& [member, count] : of_group) members.push_back({member, count});
    faults.push_back({{"group", group_id}, {"members", std::move(members)}});
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
      for (const json& task : state["quarantined_tasks"]) quarantined.insert(Integer(task));
    }
    for (const json& entry : state.value("faults", json::array())) {
      if (faults.size() >= kFaultGroupsMax) break;
      Faults& of_group = faults[Integer(entry.at("group"))];
      for (const json& member : entry.at("members")) {
        of_group[static_cast<int32_t>(Integer(member.at(0)))] =
            static_cast<uint64_t>(Integer(member.at(1)));
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
