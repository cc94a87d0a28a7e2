#include "forebay/env/tool_environment.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/json_work.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"
#include "forebay/env/tools/text.h"

namespace forebay::env {
namespace {

using Prompt = ToolEnvironmentOptions::Prompt;

constexpr size_t kEchoBytesMax = 200;  // of the model's own text in an error

struct Shared {
  Loop& loop;
  std::unique_ptr<EnvironmentPool> inner;
  std::vector<std::unique_ptr<ToolProvider>> providers;
  ToolEnvironmentOptions options;
  JsonWork work;
};

class ToolEnvironment final : public Environment {
 public:
  ToolEnvironment(std::shared_ptr<Shared> shared, std::unique_ptr<Environment> inner)
      : shared_(std::move(shared)), inner_(std::move(inner)) {}

  Task<Result<std::vector<Message>>> Reset(ResetRequest request, TimePoint deadline) override {
    Task<Status> opening = OpenSessions(deadline);
    const Status opened = co_await std::move(opening);
    if (!opened.ok()) co_return opened;
    Task<Status> describing = Describe(deadline);
    const Status described = co_await std::move(describing);
    if (!described.ok()) co_return described;
    Task<Result<std::vector<Message>>> resetting = inner_->Reset(std::move(request), deadline);
    Result<std::vector<Message>> messages = co_await std::move(resetting);
    if (messages.ok() && shared_->options.prompt == Prompt::kSystem) AddPrompt(&*messages);
    co_return messages;
  }

  Task<Result<StepResult>> Step(std::string action, TimePoint deadline) override {
    const auto written = std::make_shared<std::string>(std::move(action));
    Task<Result<ToolAnswer>> reading = shared_->work.Run(written->size(), deadline, [written] {
      return Result<ToolAnswer>(ParseToolAnswer(*written));
    });
    Result<ToolAnswer> answer = co_await std::move(reading);
    if (!answer.ok()) co_return answer.status();
    if (answer->calls.empty() && answer->broken.empty()) {
      Task<Result<StepResult>> stepping = inner_->Step(std::move(*written), deadline);
      Result<StepResult> step = co_await std::move(stepping);
      co_return step;
    }
    StepResult result;
    // In the order in which the model wrote them: it has no other way to tell results apart.
    auto broken = answer->broken.begin();
    const auto tell_broken = [&](size_t calls_before) {
      for (; broken != answer->broken.end() && broken->calls_before <= calls_before; ++broken) {
        const ToolResult told = {
            .text = fmt::format("this tool call cannot be read, {}: {}", broken->reason,
                                PrintableText(broken->text, kEchoBytesMax)),
            .error = true};
        result.messages.push_back(Tell(Full(result) ? Refusal() : told));
      }
    };
    for (size_t i = 0; i < answer->calls.size(); ++i) {
      tell_broken(i);
      if (Full(result)) {
        result.messages.push_back(Tell(Refusal()));
        continue;
      }
      Task<Result<ToolResult>> calling = Call(std::move(answer->calls[i]), deadline, &result.tool);
      const Result<ToolResult> told = co_await std::move(calling);
      if (!told.ok()) co_return told.status();
      result.messages.push_back(Tell(*told));
    }
    tell_broken(answer->calls.size());
    co_return result;
  }

  std::string tools_json() const override {
    return shared_->options.prompt == Prompt::kTemplate ? description_ : "";
  }

 private:
  Task<Status> OpenSessions(TimePoint deadline) {
    for (const auto& provider : shared_->providers) {
      Task<Result<std::unique_ptr<ToolSession>>> opening = provider->Open(deadline);
      Result<std::unique_ptr<ToolSession>> session = co_await std::move(opening);
      if (!session.ok()) co_return session.status();
      for (const ToolSpec& tool : (*session)->tools()) {
        if (Find(tool.name) != nullptr) {
          co_return InvalidArgument(fmt::format(
              "there are two tools '{}': the model could not say which one it means", tool.name));
        }
      }
      sessions_.push_back(std::move(*session));
    }
    co_return OkStatus();
  }

  ToolSession* Find(std::string_view name) const {
    for (const auto& session : sessions_) {
      for (const ToolSpec& tool : session->tools()) {
        if (tool.name == name) return session.get();
      }
    }
    return nullptr;
  }

  std::vector<ToolSpec> AllTools() const {
    std::vector<ToolSpec> all;
    for (const auto& session : sessions_) {
      all.insert(all.end(), session->tools().begin(), session->tools().end());
    }
    return all;
  }

  Task<Result<ToolResult>> Call(ToolCall call, TimePoint deadline, std::string* answered) {
    ToolSession* const session = Find(call.name);
    if (session == nullptr) {
      std::string names;
      for (const ToolSpec& tool : AllTools()) names += (names.empty() ? "" : ", ") + tool.name;
      co_return ToolResult{
          .text = fmt::format("there is no tool '{}'; there are: {}", call.name, names),
          .error = true};
    }
    if (answered->empty()) *answered = call.name;
    const TimePoint end = std::min(deadline, shared_->loop.Now() + shared_->options.call_deadline);
    Task<Result<ToolResult>> calling = session->Call(std::move(call), end);
    Result<ToolResult> result = co_await std::move(calling);
    co_return result;
  }

  bool Full(const StepResult& step) const {
    return static_cast<int64_t>(step.messages.size()) >= shared_->options.calls_per_turn_max;
  }
  ToolResult Refusal() const {
    return {.text = fmt::format("at most {} calls in one turn are answered",
                                shared_->options.calls_per_turn_max),
            .error = true};
  }

  Message Tell(const ToolResult& result) const {
    std::string text = PrintableText(result.text, shared_->options.result_bytes_max);
    if (result.error) text = "error: " + text;
    if (shared_->options.prompt == Prompt::kTemplate) {
      return {.role = "tool", .content = std::move(text)};
    }
    return {.role = "user", .content = fmt::format("<tool_response>\n{}\n</tool_response>", text)};
  }

  // What the model is told of its tools, whose schemas may be long.
  Task<Status> Describe(TimePoint deadline) {
    const auto tools = std::make_shared<const std::vector<ToolSpec>>(AllTools());
    size_t bytes = 0;
    for (const ToolSpec& tool : *tools) bytes += tool.description.size() + tool.parameters.size();
    Task<Result<std::string>> writing =
        shared_->work.Run(bytes, deadline, [tools, prompt = shared_->options.prompt] {
          return Result<std::string>(prompt == Prompt::kTemplate ? ToolsJson(*tools)
                                                                 : ToolsPrompt(*tools));
        });
    Result<std::string> written = co_await std::move(writing);
    if (!written.ok()) co_return written.status();
    description_ = std::move(*written);
    co_return OkStatus();
  }

  void AddPrompt(std::vector<Message>* messages) {
    if (!messages->empty() && messages->front().role == "system") {
      messages->front().content += "\n\n" + description_;
    } else {
      messages->insert(messages->begin(), {.role = "system", .content = std::move(description_)});
    }
  }

  std::shared_ptr<Shared> shared_;
  std::unique_ptr<Environment> inner_;
  std::vector<std::unique_ptr<ToolSession>> sessions_;
  std::string description_;  // of the tools
};

class ToolPool final : public EnvironmentPool {
 public:
  explicit ToolPool(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Task<Result<std::unique_ptr<Environment>>> Acquire(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    Task<Result<std::unique_ptr<Environment>>> acquiring = shared->inner->Acquire(deadline);
    Result<std::unique_ptr<Environment>> inner = co_await std::move(acquiring);
    if (!inner.ok()) co_return inner.status();
    co_return std::unique_ptr<Environment>(
        std::make_unique<ToolEnvironment>(shared, std::move(*inner)));
  }

  Task<void> Shutdown(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    Task<void> inner = shared->inner->Shutdown(deadline);
    co_await std::move(inner);
    for (const auto& provider : shared->providers) {
      Task<void> ending = provider->Shutdown(deadline);
      co_await std::move(ending);
    }
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<EnvironmentPool>> MakeToolEnvironment(
    Loop& loop, std::unique_ptr<EnvironmentPool> inner,
    std::vector<std::unique_ptr<ToolProvider>> providers, const ToolEnvironmentOptions& options) {
  if (providers.empty()) return InvalidArgument("an environment with tools needs some tools");
  if (options.call_deadline <= Duration::zero() || options.calls_per_turn_max < 1 ||
      options.result_bytes_max < 64) {
    return InvalidArgument(
        "of an environment with tools, call_deadline must be more than 0, calls_per_turn_max 1 or "
        "more and result_bytes_max 64 or more");
  }
  return std::unique_ptr<EnvironmentPool>(std::make_unique<ToolPool>(
      std::make_shared<Shared>(Shared{.loop = loop,
                                      .inner = std::move(inner),
                                      .providers = std::move(providers),
                                      .options = options,
                                      .work = JsonWork(loop, options.workers)})));
}

}  // namespace forebay::env
