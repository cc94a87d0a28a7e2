// The tool calls in what a model writes: ParseToolAnswer for a whole answer, ToolCallParser for one
// that arrives in pieces.
//
// Understood, anywhere in the answer and several times:
//   <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>          Hermes, Qwen
//   <|python_tag|>{"name": "add", "parameters": {"a": 1}}; {...}<|eom_id|>  Llama 3
//   {"name": "add", "parameters": {"a": 1}}   at the start of a line        Llama 3, Mistral (a
//   list)
//   ```json and its like around any of these                                other models
// A call's object has "name" and "arguments" or "parameters": an object, or a string that holds
// one (OpenAI's form); {"type": "function", "function": {...}} around it is taken off. Between the
// tags of Hermes the arguments may be missing. JSON that is no call stays text. What stands in
// <think>...</think> at the start of an answer is text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace forebay::env {

inline constexpr size_t kToolCallsMax = 64;                   // in one answer; what follows is text
inline constexpr size_t kToolCallBytesMax = size_t{1} << 20;  // of one call's text
inline constexpr size_t kToolNameBytesMax = 128;

struct ToolCall {
  std::string name;
  std::string arguments = "{}";  // a JSON object as text, keys in the model's order
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

// Something that began as a call and is none: the policy's fault, to be told to it.
struct BrokenToolCall {
  std::string text;         // what the model wrote, marks included
  std::string reason;       // one sentence, for the model
  size_t calls_before = 0;  // how many calls the model wrote before it
  friend bool operator==(const BrokenToolCall&, const BrokenToolCall&) = default;
};

// Which forms count.
struct ToolSyntax {
  bool tags = true;        // <tool_call>
  bool python_tag = true;  // <|python_tag|>
  bool bare_json = true;
  bool fences = true;  // ```json, ```tool_call, ```tool_calls, ```
};

struct ToolAnswer {
  std::string text;  // the rest; white space beside calls is dropped
  std::vector<ToolCall> calls;
  std::vector<BrokenToolCall> broken;
};

// Never fails: every text is an answer. Time is linear in the text, up to a factor of kToolCallsMax
// for hostile ones.
ToolAnswer ParseToolAnswer(std::string_view answer, const ToolSyntax& syntax = {});

struct ToolEvent {
  enum class Kind { kText, kCall, kBroken };
  Kind kind = Kind::kText;
  std::string text;    // kText: a piece of it; kBroken: what the model wrote
  ToolCall call;       // kCall
  std::string reason;  // kBroken
};

// One answer in pieces of any size. Text comes out as soon as it cannot be the beginning of a call;
// a call when it is complete. All events together are what ParseToolAnswer gives, however the
// answer was cut. Copyable; not thread-safe.
class ToolCallParser {
 public:
  explicit ToolCallParser(const ToolSyntax& syntax = {}) : syntax_(syntax) {}

  // What can be said now. UTF-8 characters may be cut between pieces; they may then be cut between
  // text events as well.
  std::vector<ToolEvent> Feed(std::string_view piece);
  // The rest. Feed nothing after it.
  std::vector<ToolEvent> Finish();

  // Calls so far, broken ones included.
  size_t calls() const { return calls_; }

 private:
  enum class Mode { kText, kThink, kTags, kPythonTag, kFence, kBare };
  // Where brackets and strings of JSON stand.
  struct JsonState {
    bool in_string = false;
    bool escaped = false;
    int depth = 0;
    void Take(char c);
  };

  // One step of the state machine over Rest(); false: it needs more.
  bool Advance(bool final);
  bool AdvanceText(bool final);
  bool AdvanceThink(bool final);
  bool AdvanceTags(bool final);
  bool AdvancePythonTag(bool final);
  bool AdvanceFence(bool final);
  bool AdvanceBare(bool final);
  bool TooLong(bool final);
  void CutLongCall();

  std::string_view Rest() const { return std::string_view(pending_).substr(taken_); }
  void Enter(Mode mode);
  void TakeText(size_t bytes);  // from the start of Rest()
  // The first `bytes` of Rest() are one stretch of calls whose JSON is `body`. `surely`: it was
  // marked as calls; else it may be text.
  void TakeCalls(size_t bytes, std::string_view body, bool surely, bool complete);
  void EmitText(std::string_view text);
  void EmitBroken(std::string text, std::string reason);

  ToolSyntax syntax_;
  Mode mode_ = Mode::kText;
  std::string pending_;
  size_t taken_ = 0;    // of pending_: done with
  size_t scanned_ = 0;  // of Rest(), in the present mode
  JsonState json_;
  size_t body_ = 0;  // where the body begins in Rest() (kFence: 0 before its first line ended)
  size_t end_in_string_ = 0;  // the first end mark inside a JSON string; 0: none
  bool line_start_ = true;    // only white space since the last newline
  bool at_start_ = true;      // only white space so far
  bool in_code_ = false;      // of a fence that is no call
  bool after_call_ = false;
  std::string space_;  // white space that may stand beside a call
  size_t calls_ = 0;
  std::vector<ToolEvent> events_;
};

}  // namespace forebay::env
