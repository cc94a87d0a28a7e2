// Rewards as a harness writes them.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace forebay::rollout::serving {

// {"reward": x} or {"rewards": {name: x}} into `out`, beside what is there. Returns what is wrong
// (and changes nothing); "" if nothing is.
std::string ReadRewards(std::string_view json, std::map<std::string, double>* out);

}  // namespace forebay::rollout::serving
