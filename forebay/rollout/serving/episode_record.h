// EpisodeRecord: the calls of one harness as token-exact branches of one trajectory. Pure: no
// sockets, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {

// A prompt, and how it hangs together with what was recorded.
struct RecordedPrompt {
  int32_t parent = -1;       // the call whose prompt and sampled tokens it begins with; -1: none
  std::vector<int32_t> ids;  // all of it
  size_t given = 0;          // how many of its last ids are new
  // Of a chat: the text with the policy's turns as placeholders, and the messages in a form that
  // compares. Of a completion: the text.
  std::string rendered;
  std::vector<std::string> messages;
  std::string tools_json, template_variables_json;
  ApiKind kind = ApiKind::kChat;
};

// A harness quotes what the policy said, as text. The tokens of that are not made again from the
// text, which may give other ones: a request that repeats the messages of a recorded call and its
// answer goes on from the tokens of that call. A request whose own tokens begin with those of a
// recorded call goes on from it as well. Every other one begins a new branch.
class EpisodeRecord {
 public:
  // Everything in `model` must outlive it.
  explicit EpisodeRecord(const ServedModel& model) : model_(model) {}

  // One for each prompt of the request.
  std::optional<ApiError> Prompts(const ApiRequest& request,
                                  std::vector<RecordedPrompt>* out) const;

  // The environment took that long to answer the newest call.
  void AddEnvironmentTime(int64_t us);

  // A call is complete; `tool`: what it calls.
  void Add(const RecordedPrompt& prompt, const GenerateResult& result, const Answer& answer,
           std::string tool);

  // How many tokens the prompt adds to the trajectory, each of `choices` answers apart: the first
  // goes on in its parent's branch if nothing has done so yet, every other one is a branch.
  int64_t Growth(const RecordedPrompt& prompt, int64_t choices) const;

  size_t calls() const { return calls_.size(); }
  int64_t sampled_tokens() const { return sampled_tokens_; }
  // Of all branches together, as they stand in the trajectory.
  int64_t tokens() const;

  // Writes tokens, masks, logprobs, versions and turns. A branch begins with a turn of kind prompt;
  // what it shares with an earlier branch is repeated there with loss_mask 0, so that every sampled
  // token is trained on once, after exactly the tokens that it was sampled after.
  void Write(Trajectory* out) const;

 private:
  struct Call {
    int32_t parent = -1;
    ApiKind kind = ApiKind::kChat;
    std::vector<int32_t> given;  // what came after the parent's tokens
    GenerateResult result;
    std::string rendered;
    std::vector<std::string> messages;
    std::string tools_json, template_variables_json;
    std::string answer;    // a chat's: the message in a form that compares
    std::string raw_text;  // a completion's: all that was sampled but the stop token, as text
    std::string tool;
    int64_t environment_us = 0;
    bool has_child = false;
  };

  std::optional<ApiError> ChatPrompt(const ApiRequest& request, RecordedPrompt* out) const;
  std::optional<ApiError> TextPrompt(const std::string& text, RecordedPrompt* out) const;
  void TokenPrompt(std::vector<int32_t> ids, RecordedPrompt* out) const;
  // Goes on from `call`; false: the template writes the conversation so far in another way now.
  bool ContinueChat(size_t call, const ApiRequest& request, RecordedPrompt* out) const;
  // The call with the most tokens that `ids` begin with.
  void FindParent(RecordedPrompt* out) const;
  std::vector<int32_t> Path(int32_t call) const;        // from the branch's first to this one
  std::vector<int32_t> FullTokens(int32_t call) const;  // its prompt and what was sampled
  std::vector<std::vector<int32_t>> Branches() const;   // paths that end in a leaf

  const ServedModel model_;
  std::vector<Call> calls_;
  int64_t sampled_tokens_ = 0;
};

}  // namespace forebay::rollout::serving
