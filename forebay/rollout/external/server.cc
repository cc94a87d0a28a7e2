// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/external/server.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_client.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/json_reader.h"
#include "forebay/rollout/external/wire.h"

namespace forebay::rollout::external {
namespace {

constexpr int32_t kProbeTokens = 2;
constexpr int32_t kProbeAlternatives = 5;
// Far from 1, so that even nearly equal logits differ visibly.
constexpr double kProbeTemperature = 0.2;
// Two numbers of the same distribution differ by less, whatever the server computes in.
constexpr float kSameLogprob = 1e-2F;

Status FromHttp(int status, const std::string& body, const Ask& ask, const std::string& remedy) {
  const std::string what = fmt::format("{} {} was answered with {}: {}", ask.method, ask.target,
                                       status, ErrorMessage(body));
  switch (status) {
    case 401:
    case 403:
      return FailedPrecondition(what + "; does it want another key?");
    case 404:
    case 405:
      return FailedPrecondition(remedy.empty() ? what : what + "; " + remedy);
    case 410:
      return Unavailable(what);  // it is another process than the one we knew
    case 409:
      return FailedPrecondition(what);  // another publisher gives it weights
    case 429:
      return ResourceExhausted(what);
    case 408:
    case 504:
      return DeadlineExceeded(what);
    case 503:
      return Unavailable(what);  // it says that it is not there, or not now
    default:
      return status >= 500 ? Internal(what) : InvalidArgument(what);
  }
}

// Whether the same tokens have other log-probabilities at another temperature.
bool Differs(const WireAnswer& a, const WireAnswer& b) {
  if (a.top_logprobs.empty() || b.top_logprobs.empty()) return false;
  for (const TokenLogprob& x : a.top_logprobs.front()) {
    for (const TokenLogprob& y : b.top_logprobs.front()) {
      if (x.token == y.token && std::abs(x.logprob - y.logprob) > kSameLogprob) return true;
    }
  }
  return false;
}

}  // namespace

Task<Result<HttpResponse>> Server::Exchange(Ask ask, TimePoint deadline) {
  HttpCall call{
      .request = {.method = ask.method, .url = url_ + ask.target, .body = std::move(ask.body)},
      .deadline = deadline,
      .body_bytes_max = options_.answer_bytes_max};
  if (!call.request.body.empty()) call.request.headers.Add("Content-Type", ask.content_type);
  if (!ticket_.empty()) call.request.headers.Add("Forebay-Publisher", ticket_);
  if (!options_.token.empty()) {
    call.request.headers.Add("Authorization", "Bearer " + options_.token);
  }
  Task<Result<HttpResponse>> sending = client_.Send(std::move(call));
  co_return co_await std::move(sending);
}

Task<Result<std::string>> Server::Send(Ask ask, TimePoint deadline, std::string remedy) {
  const Ask what{.method = ask.method, .target = ask.target};
  Task<Result<HttpResponse>> exchanging = Exchange(std::move(ask), deadline);
  Result<HttpResponse> response = co_await std::move(exchanging);
  if (!response.ok()) co_return response.status();
  if (response->status != 200) {
    co_return FromHttp(response->status, response->body, what, remedy).WithContext(url_);
  }
  co_return std::move(response->body);
}

Task<Result<WireAnswer>> Server::Generate(GenerateRequest request) {
  Result<Ask> ask = wire_.Generate(request, adapter_);
  if (!ask.ok()) co_return ask.status();
  Task<Result<std::string>> sending =
      Send(std::move(*ask), request.deadline, wire_.generate_remedy());
  const Result<std::string> body = co_await std::move(sending);
  if (!body.ok()) co_return body.status();
  Result<WireAnswer> answer = wire_.Read(*body, request);
  if (!answer.ok()) co_return answer.status().WithContext(url_);
  co_return std::move(*answer);
}

Task<Status> Server::LoadAdapter(std::string name, std::string folder, TimePoint deadline) {
  std::optional<Ask> ask = wire_.LoadAdapter(name, folder);
  if (!ask) co_return Unimplemented(url_ + " is of a kind that loads no adapters");
  const Ask what{.method = ask->method, .target = ask->target};
  Task<Result<HttpResponse>> exchanging = Exchange(std::move(*ask), deadline);
  const Result<HttpResponse> response = co_await std::move(exchanging);
  if (!response.ok()) co_return response.status();
  if (response->status == 404 || response->status == 405) {
    co_return Unimplemented(fmt::format("{} has no {}", url_, what.target));
  }
  if (response->status != 200) {
    co_return FromHttp(response->status, response->body, what, "").WithContext(url_);
  }
  // vLLM answers with a sentence.
  const Result<Json> answer = ParseAnswer(response->body);
  if (answer.ok() && Field(*answer, "success") == false) {
    co_return FailedPrecondition(url_ +
                                 " did not load the adapter: " + ErrorMessage(response->body));
  }
  co_return OkStatus();
}

Task<Status> Server::UnloadAdapter(std::string name, TimePoint deadline) {
  std::optional<Ask> ask = wire_.UnloadAdapter(name);
  if (!ask) co_return OkStatus();
  Task<Result<std::string>> sending = Send(std::move(*ask), deadline, "");
  const Result<std::string> body = co_await std::move(sending);
  co_return body.status();
}

Task<Status> Server::CheckHealth(TimePoint deadline) {
  Task<Result<std::string>> sending = Send(wire_.Health(), deadline, "");
  const Result<std::string> body = co_await std::move(sending);
  co_return body.status();
}

Task<Status> Server::CheckAnswers(Ask ask, TimePoint deadline) {
  Task<Result<HttpResponse>> exchanging = Exchange(std::move(ask), deadline);
  const Result<HttpResponse> response = co_await std::move(exchanging);
  co_return response.status();
}

Task<Result<WireAnswer>> Server::Probe(double temperature, TimePoint deadline) {
  GenerateRequest request{.prompt = {0, 1},
                          .new_tokens_max = kProbeTokens,
                          .temperature = temperature,
                          .deadline = deadline,
                          .top_logprobs = kProbeAlternatives};
  Task<Result<WireAnswer>> generating = Generate(request);
  Result<WireAnswer> answer = co_await std::move(generating);
  if (!answer.ok()) co_return answer.status();
  const Result<GenerateResult> checked =
      CheckAnswer(*answer, request, options_.vocab_size, /*policy_version=*/0);
  if (!checked.ok()) co_return checked.status().WithContext(url_);
  co_return std::move(*answer);
}

Task<Result<ServerFacts>> Server::Examine(TimePoint deadline) {
  Task<Status> checking = CheckHealth(deadline);
  const Status health = co_await std::move(checking);
  if (!health.ok()) co_return health;
  // A server that we give weights is ours alone: nobody else can have paused it for long.
  for (const Ask& ask : options_.reload ? wire_.Rouse() : std::vector<Ask>()) {
    Task<Result<std::string>> sending = Send(ask, deadline, "");
    const Result<std::string> ignored = co_await std::move(sending);  // Probe tells
  }
  ServerFacts facts;
  if (const Ask ask = wire_.Model(); !ask.target.empty()) {
    Task<Result<std::string>> sending = Send(ask, deadline, "");
    const Result<std::string> body = co_await std::move(sending);
    if (!body.ok()) co_return body.status();
    const Result<Json> models = ParseAnswer(*body);
    if (!models.ok()) co_return models.status().WithContext(url_);
    bool found = options_.model.empty();
    std::string names;
    for (const Json& card : Field(*models, "data")) {
      const std::string name = Text(Field(card, "id"));
      facts.models.push_back(name);
      names += (names.empty() ? "'" : ", '") + name.substr(0, 100) + "'";
      if (!options_.model.empty() && name != options_.model) continue;
      found = true;
      facts.digest = Text(Field(card, "weights_digest"));
      const Json& length = Field(card, "max_model_len");
      if (length.is_number_unsigned()) facts.context = length.get<int64_t>();
    }
    if (!found) {
      co_return FailedPrecondition(fmt::format("{} does not serve the model '{}' but {}", url_,
                                               options_.model, names.empty() ? "none" : names));
    }
  }
  Task<Result<WireAnswer>> probing = Probe(1, deadline);
  Result<WireAnswer> plain = co_await std::move(probing);
  if (!plain.ok()) co_return plain.status();
  Task<Result<WireAnswer>> again = Probe(kProbeTemperature, deadline);
  const Result<WireAnswer> colder = co_await std::move(again);
  if (!colder.ok()) co_return colder.status();
  facts.processed = Differs(*plain, *colder);
  facts.version = std::move(plain->version);
  co_return facts;
}

Task<Status> Server::Reload(std::string folder, int64_t version, TimePoint deadline) {
  Status status;
  const std::vector<ReloadStep> steps = wire_.Reload(folder, version);
  if (steps.empty()) {
    co_return FailedPrecondition(url_ + " cannot take new weights: its kind of server has no way");
  }
  for (const ReloadStep& step : steps) {
    if (!status.ok() && !step.always) continue;
    Task<Result<std::string>> sending = Send(step.ask, deadline, step.remedy);
    const Result<std::string> body = co_await std::move(sending);
    if (!body.ok()) {
      if (step.optional && body.status().code() == StatusCode::kFailedPrecondition) continue;
      if (status.ok()) status = body.status();
      continue;
    }
    if (body->empty()) continue;  // some of them say nothing
    const Result<Json> answer = ParseAnswer(*body);
    Status wrong;
    if (!answer.ok()) {
      wrong = answer.status();
    } else if (Field(*answer, "success") == false) {
      wrong = FailedPrecondition("it did not take the weights: " + ErrorMessage(*body));
    } else if (!step.version.empty() && Text(Field(*answer, "weight_version")) != step.version) {
      wrong = DataLoss(fmt::format("it has weights of version '{}' after it was given version {}",
                                   Text(Field(*answer, "weight_version")), step.version));
    }
    if (status.ok()) status = wrong.WithContext(url_ + step.ask.target);
  }
  co_return status;
}

}  // namespace forebay::rollout::external
