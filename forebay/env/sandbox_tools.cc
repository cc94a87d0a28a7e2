#include "forebay/env/sandbox_tools.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/sandbox.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;

struct Shared {
  std::vector<ToolSpec> tools;
  Duration wall_max;
  std::unique_ptr<Sandbox> sandbox;
};

ToolSpec Spec(std::string name, std::string description, const std::string& argument,
              const std::string& meaning) {
  const Json parameters = {
      {"type", "object"},
      {"properties", {{argument, {{"type", "string"}, {"description", meaning}}}}},
      {"required", Json::array({argument})}};
  return {.name = std::move(name),
          .description = std::move(description),
          .parameters = parameters.dump()};
}

std::string Told(const SandboxResult& result, Duration wall_max) {
  std::string text = result.output;
  const auto line = [&text](std::string_view more) {
    if (!text.empty() && text.back() != '\n') text.push_back('\n');
    text.append(more);
  };
  if (!result.errors.empty()) line(result.errors);
  if (result.timed_out) {
    line(fmt::format("[it was ended after {:g} s]", Seconds(wall_max)));
  } else if (result.output_full) {
    line("[it was ended because it wrote too much]");
  } else if (result.exit_code > 128) {
    line(
        fmt::format("[it was ended by signal {}: it may have used more than its share of time, "
                    "memory or files]",
                    result.exit_code - 128));
  } else if (result.exit_code != 0) {
    line(fmt::format("[exit code {}]", result.exit_code));
  }
  return text.empty() ? "[no output]" : text;
}

class SandboxSession final : public ToolSession {
 public:
  explicit SandboxSession(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  const std::vector<ToolSpec>& tools() const override { return shared_->tools; }

  Task<Result<ToolResult>> Call(ToolCall call, TimePoint deadline) override {
    const bool python = call.name == "python";
    const char* const argument = python ? "code" : "command";
    const Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    const auto text = arguments.is_object() ? arguments.find(argument) : arguments.end();
    if (text == arguments.end() || !text->is_string()) {
      co_return ToolResult{
          .text = fmt::format("'{}' needs the argument \"{}\", a text", call.name, argument),
          .error = true};
    }
    SandboxRun run;
    run.command = python ? std::vector<std::string>{"/usr/bin/python3", "-I", "-c"}
                         : std::vector<std::string>{"/bin/sh", "-c"};
    run.command.push_back(text->get<std::string>());
    const std::shared_ptr<Shared> shared = shared_;
    Task<Result<SandboxResult>> running = shared->sandbox->Run(std::move(run), deadline);
    const Result<SandboxResult> result = co_await std::move(running);
    if (!result.ok() && result.status().code() == StatusCode::kInvalidArgument) {
      co_return ToolResult{.text = result.status().message(), .error = true};
    }
    if (!result.ok()) co_return result.status();
    co_return ToolResult{.text = Told(*result, shared->wall_max)};
  }

 private:
  std::shared_ptr<Shared> shared_;
};

class SandboxProvider final : public ToolProvider {
 public:
  explicit SandboxProvider(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  Task<Result<std::unique_ptr<ToolSession>>> Open(TimePoint) override {
    co_return std::unique_ptr<ToolSession>(std::make_unique<SandboxSession>(shared_));
  }
  Task<void> Shutdown(TimePoint) override { co_return; }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<ToolProvider>> MakeSandboxTools(Loop& loop, SandboxToolsOptions options) {
  auto shared = std::make_shared<Shared>();
  if (options.python) {
    shared->tools.push_back(Spec("python",
                                 "Runs a Python program and returns what it prints. Each call "
                                 "begins anew; there is no network.",
                                 "code", "the program"));
  }
  if (options.shell) {
    shared->tools.push_back(Spec("shell",
                                 "Runs a shell command and returns what it prints. Each call "
                                 "begins anew; there is no network.",
                                 "command", "the command"));
  }
  if (shared->tools.empty()) return InvalidArgument("a sandbox without a tool is of no use");
  shared->wall_max = options.sandbox.wall_max;
  FB_ASSIGN_OR_RETURN(shared->sandbox, Sandbox::Create(loop, std::move(options.sandbox)));
  return std::unique_ptr<ToolProvider>(std::make_unique<SandboxProvider>(std::move(shared)));
}

}  // namespace forebay::env
