// ParseBounded: JSON that a client has sent, or what is wrong with it and where.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace forebay::rollout::serving {

// Text as JSON. Of a name that an object has twice the last value counts, as for OpenAI's servers.
//
// nullopt: not JSON, nested deeper than a client has reason to (what walks over it recurses), or an
// object with more names than it has reason to. `problem` then says why and at which byte, as the
// end of a sentence: "is no JSON: at byte 17, after '{\"model\": ', ...".
std::optional<nlohmann::ordered_json> ParseBounded(std::string_view text,
                                                   std::string* problem = nullptr);

}  // namespace forebay::rollout::serving
