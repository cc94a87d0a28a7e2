// Whatever a client sends as a request or a reward is read or refused with a message, and what was
// read can be written out again.
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/bounded_json.h"
#include "forebay/rollout/serving/message_form.h"
#include "forebay/rollout/serving/plain_tools.h"
#include "forebay/rollout/serving/rewards_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forebay::rollout::serving;  // NOLINT(google-build-using-namespace)
  using Json = nlohmann::ordered_json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string problem;
  if (!ParseBounded(text, &problem)) {
    FB_CHECK(!problem.empty() && problem.size() < 1000);
  }
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion, ApiKind::kTokens}) {
    ApiRequest request;
    if (const std::optional<ApiError> error = ParseApiRequest(kind, text, &request)) {
      FB_CHECK(error->status == 400 && !error->message.empty());
      FB_CHECK(Json::accept(ErrorJson(*error)));
      continue;
    }
    if (kind != ApiKind::kChat) continue;
    FB_CHECK(!MessageForms(request.messages_json).empty());
    const std::string plain = WithPlainTools(request.messages_json, request.tools_json);
    FB_CHECK(!MentionsTools(plain, ""));
    FB_CHECK(!MessageForms(plain).empty());
  }
  std::map<std::string, double> rewards;
  const std::string wrong = ReadRewards(text, &rewards);
  FB_CHECK(wrong.empty() == !rewards.empty());
  return 0;
}
