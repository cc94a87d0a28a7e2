#include "forebay/rollout/serving/episode_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/chat_render.h"
#include "forebay/rollout/serving/message_form.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {
namespace {

// No template changes it, and nobody writes it.
std::string Placeholder(size_t message) { return fmt::format("turn{}ofthepolicy", message); }

bool BeginsWith(const std::vector<int32_t>& ids, const std::vector<int32_t>& prefix) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

}  // namespace

std::vector<int32_t> EpisodeRecord::Path(int32_t call) const {
  std::vector<int32_t> out;
  for (int32_t at = call; at >= 0; at = calls_[static_cast<size_t>(at)].parent) out.push_back(at);
  std::ranges::reverse(out);
  return out;
}

std::vector<int32_t> EpisodeRecord::FullTokens(int32_t call) const {
  std::vector<int32_t> out;
  for (const int32_t at : Path(call)) {
    const Call& c = calls_[static_cast<size_t>(at)];
    out.insert(out.end(), c.given.begin(), c.given.end());
    out.insert(out.end(), c.result.tokens.begin(), c.result.tokens.end());
  }
  return out;
}

void EpisodeRecord::FindParent(RecordedPrompt* out) const {
  size_t most = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const std::vector<int32_t> tokens = FullTokens(static_cast<int32_t>(i));
    if (tokens.size() <= most || !BeginsWith(out->ids, tokens)) continue;
    most = tokens.size();
    out->parent = static_cast<int32_t>(i);
  }
  out->given = out->ids.size() - most;
}

bool EpisodeRecord::ContinueChat(size_t call, const ApiRequest& request,
                                 RecordedPrompt* out) const {
  const Call& from = calls_[call];
  std::vector<size_t> places;
  std::vector<std::string> contents;
  for (const int32_t at : Path(static_cast<int32_t>(call))) {
    places.push_back(calls_[static_cast<size_t>(at)].messages.size());
    contents.push_back(Placeholder(places.back()));
  }
  const std::string messages_json = WithPlaceholders(request.messages_json, places, contents);
  ChatText text = ChatTextOf(request);
  text.messages_json = messages_json;
  Result<std::string> rendered = RenderChat(model_, text);
  const std::string before = from.rendered + contents.back();
  if (!rendered.ok() || !rendered->starts_with(before)) return false;
  Result<std::vector<int32_t>> fresh =
      model_.tokenizer->Encode(std::string_view(*rendered).substr(before.size()));
  if (!fresh.ok()) return false;
  // The end of the turn, if the policy has written it itself.
  const std::vector<int32_t>& sampled = from.result.tokens;
  if (!fresh->empty() && !sampled.empty() && fresh->front() == sampled.back()) {
    fresh->erase(fresh->begin());
  }
  out->parent = static_cast<int32_t>(call);
  out->ids = FullTokens(out->parent);
  out->ids.insert(out->ids.end(), fresh->begin(), fresh->end());
  out->given = fresh->size();
  out->rendered = std::move(*rendered);
  return true;
}

std::optional<ApiError> EpisodeRecord::ChatPrompt(const ApiRequest& request,
                                                  RecordedPrompt* out) const {
  out->messages = MessageForms(request.messages_json);
  out->tools_json = request.tools_json;
  out->template_variables_json = request.template_variables_json;
  // The deepest call that the messages go on from; of equals the newest.
  std::vector<size_t> candidates;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    const size_t n = call.messages.size();
    if (call.kind == ApiKind::kChat && call.tools_json == request.tools_json &&
        call.template_variables_json == request.template_variables_json &&
        out->messages.size() > n + 1 && out->messages[n] == call.answer &&
        std::equal(call.messages.begin(), call.messages.end(), out->messages.begin())) {
      candidates.push_back(i);
    }
  }
  std::ranges::sort(candidates, [&](size_t a, size_t b) {
    const size_t na = calls_[a].messages.size();
    const size_t nb = calls_[b].messages.size();
    return na != nb ? na > nb : a > b;
  });
  if (!request.continue_final_message) {
    for (const size_t call : candidates) {
      if (ContinueChat(call, request, out)) return std::nullopt;
    }
  }
  if (model_.chat == nullptr) {
    return ApiError{.message = kNoTemplate};
  }
  Result<std::string> rendered = RenderChat(model_, ChatTextOf(request));
  if (!rendered.ok()) return ApiError{.message = rendered.status().message(), .param = "messages"};
  Result<std::vector<int32_t>> ids = model_.tokenizer->Encode(*rendered);
  if (!ids.ok()) return ApiError{.message = ids.status().message(), .param = "messages"};
  out->rendered = std::move(*rendered);
  out->ids = std::move(*ids);
  FindParent(out);
  return std::nullopt;
}

std::optional<ApiError> EpisodeRecord::TextPrompt(const std::string& text,
                                                  RecordedPrompt* out) const {
  out->rendered = text;
  // The recorded call whose text is the longest beginning of this one.
  size_t most = 0;
  int32_t best = -1;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.kind != ApiKind::kCompletion) continue;
    const std::string whole = call.rendered + call.raw_text;
    if (whole.size() <= most || !text.starts_with(whole)) continue;
    most = whole.size();
    best = static_cast<int32_t>(i);
  }
  Result<std::vector<int32_t>> rest = model_.tokenizer->Encode(std::string_view(text).substr(most));
  if (!rest.ok()) return ApiError{.message = rest.status().message(), .param = "prompt"};
  if (best < 0) {
    out->ids = std::move(*rest);
    FindParent(out);
    return std::nullopt;
  }
  out->ids = FullTokens(best);
  out->parent = best;
  out->given = rest->size();
  if (calls_[static_cast<size_t>(best)].result.stop_token >= 0) {
    // The text has no end of turn where the policy wrote one: the same tokens, but another branch.
    out->ids.pop_back();
    out->parent = -1;
    out->given = out->ids.size() + rest->size();
  }
  out->ids.insert(out->ids.end(), rest->begin(), rest->end());
  return std::nullopt;
}

void EpisodeRecord::TokenPrompt(std::vector<int32_t> ids, RecordedPrompt* out) const {
  out->ids = std::move(ids);
  FindParent(out);
}

std::optional<ApiError> EpisodeRecord::Prompts(const ApiRequest& request,
                                               std::vector<RecordedPrompt>* out) const {
  if (request.kind == ApiKind::kChat) {
    RecordedPrompt prompt;
    if (auto error = ChatPrompt(request, &prompt)) return error;
    // Given, and no part of `rendered`, in which a placeholder stands for the whole answer.
    Result<std::vector<int32_t>> begun = model_.tokenizer->Encode(request.begun_call);
    if (!begun.ok()) return ApiError{.message = begun.status().message(), .param = "tool_choice"};
    prompt.ids.insert(prompt.ids.end(), begun->begin(), begun->end());
    prompt.given += begun->size();
    out->push_back(std::move(prompt));
  }
  for (const std::vector<int32_t>& ids : request.ids) {
    RecordedPrompt prompt{.kind = request.kind};
    TokenPrompt(ids, &prompt);
    out->push_back(std::move(prompt));
  }
  for (const std::string& text : request.texts) {
    RecordedPrompt prompt{.kind = request.kind};
    if (auto error = TextPrompt(text, &prompt)) return error;
    out->push_back(std::move(prompt));
  }
  for (const RecordedPrompt& prompt : *out) {
    if (prompt.ids.empty()) return ApiError{.message = "the prompt is empty", .param = "prompt"};
  }
  return std::nullopt;
}

int64_t EpisodeRecord::Growth(const RecordedPrompt& prompt, int64_t choices) const {
  const bool goes_on = prompt.parent >= 0 && !calls_[static_cast<size_t>(prompt.parent)].has_child;
  return choices * static_cast<int64_t>(prompt.ids.size()) -
         (goes_on ? static_cast<int64_t>(prompt.ids.size() - prompt.given) : 0);
}

void EpisodeRecord::AddEnvironmentTime(int64_t us) {
  if (!calls_.empty()) calls_.back().environment_us += us;
}

void EpisodeRecord::Add(const RecordedPrompt& prompt, const GenerateResult& result,
                        const Answer& answer, std::string tool) {
  if (result.tokens.empty()) return;
  Call call{.parent = prompt.parent, .kind = prompt.kind, .tool = std::move(tool)};
  call.given.assign(prompt.ids.end() - static_cast<std::ptrdiff_t>(prompt.given), prompt.ids.end());
  call.rendered = prompt.rendered;
  call.messages = prompt.messages;
  call.tools_json = prompt.tools_json;
  call.template_variables_json = prompt.template_variables_json;
  call.answer = AnswerForm(answer.text(), answer.calls());
  if (prompt.kind == ApiKind::kCompletion) {
    std::vector<int32_t> shown = result.tokens;
    if (result.stop_token >= 0) shown.pop_back();
    Result<std::string> text = model_.tokenizer->Decode(shown, /*skip_special=*/false);
    if (text.ok()) call.raw_text = std::move(*text);
  }
  if (prompt.parent >= 0) calls_[static_cast<size_t>(prompt.parent)].has_child = true;
  call.result = result;
  sampled_tokens_ += static_cast<int64_t>(result.tokens.size());
  calls_.push_back(std::move(call));
}

std::vector<std::vector<int32_t>> EpisodeRecord::Branches() const {
  std::vector<std::vector<int32_t>> out;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!calls_[i].has_child) out.push_back(Path(static_cast<int32_t>(i)));
  }
  return out;
}

int64_t EpisodeRecord::tokens() const {
  int64_t out = 0;
  for (const std::vector<int32_t>& branch : Branches()) {
    out += static_cast<int64_t>(FullTokens(branch.back()).size());
  }
  return out;
}

void EpisodeRecord::Write(Trajectory* out) const {
  FB_CHECK(out->tokens.empty(), "an empty trajectory to write to");
  std::vector<bool> written(calls_.size(), false);
  const auto size = [&] { return static_cast<int32_t>(out->tokens.size()); };
  const auto add = [&](const std::vector<int32_t>& ids, bool loss) {
    out->tokens.insert(out->tokens.end(), ids.begin(), ids.end());
    out->loss_mask.resize(out->tokens.size(), loss ? 1 : 0);
    if (!loss) out->rollout_logprobs.resize(out->tokens.size(), 0.0F);
  };
  for (const std::vector<int32_t>& branch : Branches()) {
    const int32_t begin = size();
    bool prompt = true;  // in what is given or repeated at the branch's start
    for (const int32_t at : branch) {
      const Call& call = calls_[static_cast<size_t>(at)];
      const int32_t given_begin = size();
      add(call.given, /*loss=*/false);
      if (written[static_cast<size_t>(at)]) {
        add(call.result.tokens, /*loss=*/false);
        continue;
      }
      written[static_cast<size_t>(at)] = true;
      if (prompt) {
        out->turns.push_back({.kind = TurnKind::kPrompt, .begin = begin, .end = size()});
      } else if (given_begin < size()) {
        out->turns.push_back({.kind = TurnKind::kObservation, .begin = given_begin, .end = size()});
      }
      prompt = false;
      const GenerateResult& result = call.result;
      out->turns.push_back({.kind = TurnKind::kAction,
                            .begin = size(),
                            .end = size() + static_cast<int32_t>(result.tokens.size()),
                            .spans = {.queue_us = result.queue_us,
                                      .prefill_us = result.prefill_us,
                                      .decode_us = result.decode_us,
                                      .environment_us = call.environment_us},
                            .tool = call.tool});
      add(result.tokens, /*loss=*/true);
      out->rollout_logprobs.insert(out->rollout_logprobs.end(), result.logprobs.begin(),
                                   result.logprobs.end());
      for (const VersionRun& run : result.versions) {
        if (!out->versions.empty() && out->versions.back().policy_version == run.policy_version) {
          out->versions.back().tokens += run.tokens;
        } else {
          out->versions.push_back(run);
        }
      }
    }
  }
}

}  // namespace forebay::rollout::serving
