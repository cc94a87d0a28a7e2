// MCP over stdio and HTTP, the three versions, and servers that misbehave.
#include "forebay/env/mcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/more_time_testing.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/json_work_testing.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/mcp_testing.h"
#include "forebay/env/subprocess/process.h"
#include "forebay/env/subprocess_testing.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"
#include "forebay/env/tools_testing.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// One server, over stdio or HTTP.
struct Way {
  std::string name;
  bool http = false;
  std::string version;  // that the server speaks
  std::string mode = "json";
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class McpTest : public ::testing::Test {
 public:
  void TearDown() override {
    session_.reset();
    if (provider_) Shutdown();
    provider_.reset();
    server_.reset();
    loop_.reset();
    EXPECT_EQ(Children(), 0);
  }

  void Shutdown() {
    RunToEnd(*loop_, [](McpTest* t) -> Task<void> {
      Task<void> ending = t->provider_->Shutdown(t->Soon(seconds(5)));
      co_await std::move(ending);
    }(this));
  }

  McpOptions OptionsOf(const Way& way) {
    const std::string script = WriteMcpServer(folder_);
    McpOptions options;
    options.backoff = milliseconds(1);
    if (!way.http) {
      options.command = {"python3", script, "stdio", way.version};
      return options;
    }
    const std::string port_file = folder_.path() + "/port" + std::to_string(++servers_);
    auto server = ChildProcess::Start(
        {.command = {"python3", script, "http", port_file, way.version, way.mode}});
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    for (int i = 0; i < 60'000 && !std::filesystem::exists(port_file); ++i) usleep(1000);
    std::string port;
    std::ifstream(port_file) >> port;
    options.url = "http://127.0.0.1:" + port + "/mcp";
    return options;
  }

  void Open(McpOptions options) {
    auto provider = MakeMcpTools(*loop_, std::move(options));
    ASSERT_TRUE(provider.ok()) << provider.status().ToString();
    provider_ = std::move(*provider);
    Session();
  }

  void Session() {
    auto session = Await(*loop_, provider_->Open(Soon()));
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = std::move(*session);
  }

  Result<ToolResult> Call(std::string name, std::string arguments = "{}",
                          Duration deadline = seconds(60)) {
    return Await(*loop_,
                 session_->Call({.name = std::move(name), .arguments = std::move(arguments)},
                                Soon(deadline)));
  }
  std::string Text(std::string name, std::string arguments = "{}") {
    const auto result = Call(std::move(name), std::move(arguments));
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return result.ok() ? result->text : "";
  }

  TimePoint Soon(Duration d = seconds(60)) const { return loop_->Now() + d; }

  TempFolder folder_;
  int servers_ = 0;
  std::unique_ptr<Loop> loop_ = MakeLoop();
  std::unique_ptr<ChildProcess> server_;
  std::unique_ptr<ToolProvider> provider_;
  std::unique_ptr<ToolSession> session_;
};

class McpWaysTest : public McpTest, public ::testing::WithParamInterface<Way> {};

TEST_P(McpWaysTest, ToolsAreListedAndCalled) {
  Open(OptionsOf(GetParam()));
  ASSERT_GT(session_->tools().size(), 10U);
  EXPECT_EQ(session_->tools()[0].name, "add");
  EXPECT_EQ(session_->tools()[0].description, "the tool add");
  EXPECT_THAT(session_->tools()[0].parameters, HasSubstr(R"("a":{"type":"number"})"));
  EXPECT_EQ(Text("add", R"({"a": 2, "b": 40})"), "42");
  EXPECT_EQ(Text("picture"), "[image image/png]\nbelow it\ninside");
  EXPECT_EQ(Text("structured"), R"({"x":[1,2]})");
  EXPECT_EQ(Text("count"), "4");
}

TEST_P(McpWaysTest, WhatTheModelDoesWrongIsToldToIt) {
  Open(OptionsOf(GetParam()));
  for (const auto& [call, text] : std::vector<std::pair<ToolCall, std::string>>{
           {{"fail", "{}"}, "it did not work"},
           {{"add", R"({"a": "x"})"}, "a must be a number"},
           {{"nothing", "{}"}, "Unknown tool"},
           {{"input", "{}"}, "nobody here can answer"}}) {
    const auto result = Call(call.name, call.arguments);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_TRUE(result->error);
    EXPECT_THAT(result->text, HasSubstr(text));
  }
  // The server's own fault is not.
  EXPECT_EQ(Call("crash").status().code(), StatusCode::kInternal);
  EXPECT_EQ(Text("add", R"({"a": 1, "b": 1})"), "2");
}

TEST_P(McpWaysTest, ALateAnswerIsNotWaitedFor) {
  Open(OptionsOf(GetParam()));
  const auto late = Call("slow", R"({"seconds": 30})", milliseconds(100));
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded) << late.status().ToString();
  EXPECT_EQ(Text("add", R"({"a": 1, "b": 1})"), "2");
}

TEST_P(McpWaysTest, GarbageAndFloodsFailTheCallAndTheNextSessionIsFine) {
  for (const std::string name : {"garbage", "flood"}) {
    Open(OptionsOf(GetParam()));
    const auto result = Call(name);
    EXPECT_FALSE(result.ok());
    EXPECT_THAT(result.status().code(),
                ::testing::AnyOf(StatusCode::kDataLoss, StatusCode::kResourceExhausted))
        << result.status().ToString();
    Session();
    EXPECT_EQ(Text("add", R"({"a": 1, "b": 1})"), "2");
    session_.reset();
    Shutdown();
    provider_.reset();
  }
}

TEST_P(McpWaysTest, TheServerMayAskMeanwhile) {
  Open(OptionsOf(GetParam()));
  EXPECT_EQ(Text("ask"), "1");
  EXPECT_THAT(Text("log"), HasSubstr("answer {}"));  // of the ping
}

TEST_P(McpWaysTest, L8_TheLoopGoesOnWhileALongAnswerOrCallIsReadAndWritten) {
  HeldWorkers reads, writes;
  const Way& way = GetParam();
  for (HeldWorkers* held : {&reads, &writes}) {
    McpOptions options = OptionsOf(way);
    options.message_bytes_max = size_t{64} << 20;
    options.workers = held->pool();
    Open(std::move(options));
    const size_t bytes = way.mode == "sse" ? 3'000'000 : 30'000'000;
    ToolCall call{.name = "long", .arguments = R"({"bytes": )" + std::to_string(bytes) + "}"};
    if (held == &writes) {
      call = {.name = "size", .arguments = R"({"of": ")" + std::string(bytes, 'y') + R"("})"};
    }
    const Result<ToolResult> result =
        AwaitHeld(*loop_, *held, session_->Call(std::move(call), Soon()));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->text, held == &writes ? std::to_string(bytes) : std::string(bytes, 'x'));
    // While it waits for a worker a call keeps its deadline.
    HeldWorkers full;
    session_.reset();
    Shutdown();
    options = OptionsOf(way);
    options.workers = full.pool();
    Open(std::move(options));
    EXPECT_EQ(Call("long", R"({"bytes": 100000})", milliseconds(200)).status().code(),
              StatusCode::kDeadlineExceeded);
    full.Release();
    EXPECT_EQ(Text("add", R"({"a": 1, "b": 1})"), "2");
    session_.reset();
    Shutdown();
    provider_.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, McpWaysTest,
                         ::testing::Values(Way{"StdioHandshake", false, "handshake"},
                                           Way{"StdioStateless", false, "stateless"},
                                           Way{"HttpHandshake", true, "handshake"},
                                           Way{"HttpHandshakeEvents", true, "handshake", "sse"},
                                           Way{"HttpStateless", true, "stateless"},
                                           Way{"HttpStatelessEvents", true, "stateless", "sse"}),
                         [](const auto& info) { return info.param.name; });

TEST_F(McpTest, TheVersionThatIsWantedIsSpokenOrRefused) {
  for (const std::string version : {"2025-06-18", "2025-11-25", "2026-07-28"}) {
    McpOptions options = OptionsOf({"", false, "both"});
    options.version = version;
    Open(std::move(options));
    const std::string log = Text("log");
    EXPECT_EQ(log.find("initialize") == std::string::npos, version == "2026-07-28") << log;
    session_.reset();
    Shutdown();
  }
  McpOptions options = OptionsOf({"", false, "handshake"});
  options.version = "2024-11-05";  // the server answers with another one
  provider_ = std::move(*MakeMcpTools(*loop_, std::move(options)));
  const auto session = Await(*loop_, provider_->Open(Soon()));
  EXPECT_EQ(session.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(session.status().message(), HasSubstr("2025-11-25"));
}

TEST_F(McpTest, L5_ADeadServerFailsTheCallAndIsStartedAgain) {
  Open(OptionsOf({"", false, "handshake"}));
  const auto result = Call("die");
  EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(result.status().message(), HasSubstr("exited with code 3"));
  EXPECT_THAT(result.status().message(), HasSubstr("last words"));
  EXPECT_EQ(Call("count").status().code(), StatusCode::kUnavailable);  // the same session
  Session();
  EXPECT_EQ(Text("count"), "1");
}

TEST_F(McpTest, TheServerHearsThatACallIsNotWantedAnyMore) {
  Open(OptionsOf({"", false, "handshake"}));
  EXPECT_FALSE(Call("slow", R"({"seconds": 30})", milliseconds(50)).ok());
  EXPECT_THAT(Text("log"), HasSubstr("notifications/cancelled"));
}

TEST_F(McpTest, EpisodesShareAConnectionOrHaveTheirOwn) {
  Open(OptionsOf({"", false, "handshake"}));
  EXPECT_EQ(Text("count"), "1");
  Session();
  EXPECT_EQ(Text("count"), "2");
  session_.reset();
  Shutdown();

  McpOptions own = OptionsOf({"", false, "handshake"});
  own.connection_per_episode = true;
  Open(std::move(own));
  EXPECT_EQ(Text("count"), "1");
  // Another waits until the first has ended.
  auto none = Await(*loop_, provider_->Open(Soon(milliseconds(50))));
  EXPECT_EQ(none.status().code(), StatusCode::kDeadlineExceeded);
  session_.reset();
  Session();
  EXPECT_EQ(Text("count"), "1");
}

TEST_F(McpTest, TheTokenIsSentAndAnEpisodesSessionIsEnded) {
  McpOptions options = OptionsOf({"", true, "handshake"});
  options.bearer = "sesame";
  options.connection_per_episode = true;
  Open(options);
  EXPECT_EQ(Text("secret"), "Bearer sesame");
  session_.reset();
  Session();
  EXPECT_THAT(Text("log"), HasSubstr("DELETE"));
}

TEST_F(McpTest, ASessionThatTheServerForgotIsMadeAgain) {
  Open(OptionsOf({"", true, "handshake"}));
  EXPECT_EQ(Call("forget").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Call("count").status().code(), StatusCode::kUnavailable);
  Session();
  EXPECT_EQ(Text("count"), "1");
}

TEST_F(McpTest, HttpFailuresSayWhatTheServerSaid) {
  Open(OptionsOf({"", true, "stateless", "sse"}));
  EXPECT_EQ(Call("busy").status().code(), StatusCode::kUnavailable);
  const auto closed = Call("closed");
  EXPECT_EQ(closed.status().code(), StatusCode::kInternal);
  EXPECT_THAT(closed.status().message(), HasSubstr("not you"));
  const auto cut = Call("count", R"({"cut": true})");
  EXPECT_EQ(cut.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(cut.status().message(), HasSubstr("before it had answered"));
  server_.reset();
  EXPECT_EQ(Call("count").status().code(), StatusCode::kUnavailable);
}

TEST_F(McpTest, AServerThatDoesNotStartIsExplained) {
  const auto open = [this](std::vector<std::string> command, Duration start) {
    auto provider = MakeMcpTools(
        *loop_,
        {.command = std::move(command), .start_deadline = start, .backoff = milliseconds(1)});
    EXPECT_TRUE(provider.ok());
    auto session = Await(*loop_, (*provider)->Open(Soon()));
    return session.status();
  };
  const Status none = open({"no_such_server"}, seconds(60));
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("no_such_server"));
  const Status ends = open({"sh", "-c", "echo oh no >&2; exit 7"}, seconds(60));
  EXPECT_EQ(ends.code(), StatusCode::kUnavailable);
  EXPECT_THAT(ends.message(), HasSubstr("oh no"));
  EXPECT_TRUE(WithMoreTime(seconds(1), [&](Duration start) {
    const Status hangs = open({"sh", "-c", "echo loading >&2; sleep 1000"}, start);
    EXPECT_EQ(hangs.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(hangs.message(), HasSubstr("did not answer"));
    return hangs.message().find("loading") != std::string::npos;
  }));
  // It repeats what it is sent: a request, which is refused, and then nothing.
  EXPECT_FALSE(open({"cat"}, seconds(60)).ok());
}

TEST_F(McpTest, AServerThatDoesNotStartIsLeftAloneForAWhileHoweverManyAsk) {
  const std::string starts = folder_.path() + "/starts";
  for (const auto& [own, connections] : {std::pair(false, 1), {false, 8}, {true, 8}}) {
    auto provider = MakeMcpTools(
        *loop_, {.command = {"sh", "-c", "echo x >> " + starts + "; echo oh no >&2; exit 7"},
                 .connection_per_episode = own,
                 .connections_max = connections,
                 .backoff = seconds(1000),
                 .backoff_max = seconds(1000)});
    ASSERT_TRUE(provider.ok());
    EXPECT_FALSE(Await(*loop_, (*provider)->Open(Soon())).ok());
    int ended = 0;
    for (int i = 0; i < 8; ++i) {
      loop_->Spawn(
          [](ToolProvider* p, TimePoint deadline) -> Task<void> {
            Task<Result<std::unique_ptr<ToolSession>>> opening = p->Open(deadline);
            const auto session = co_await std::move(opening);
            EXPECT_FALSE(session.ok());
            EXPECT_EQ(session.status().code(), StatusCode::kUnavailable);
            EXPECT_THAT(session.status().message(), HasSubstr("oh no"));
          }(provider->get(), Soon(milliseconds(20))),
          [&ended] { ++ended; });
    }
    RunToEnd(*loop_, [](McpTest* t, const int* all) -> Task<void> {
      while (*all < 8) co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    }(this, &ended));
  }
  std::ifstream file(starts);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, "x\nx\nx\n");  // one of each provider
}

TEST_F(McpTest, AToolWhoseSchemaNoPromptCouldHoldIsRefused) {
  mcp::Json tool = {{"name", "big"}, {"inputSchema", {{"x", std::string(100'000, 'y')}}}};
  std::vector<ToolSpec> tools;
  std::string cursor;
  const Status status = mcp::AddTools({{"tools", {tool}}}, &tools, &cursor);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("'big'"));
}

TEST_F(McpTest, L7_ShutdownKillsAServerThatDoesNotEnd) {
  McpOptions options = OptionsOf({"", false, "handshake"});
  options.command = {
      "sh", "-c", "trap '' TERM; python3 " + options.command[1] + " stdio handshake; sleep 1000"};
  Open(std::move(options));
  EXPECT_EQ(Text("count"), "1");
  session_.reset();
  RunToEnd(*loop_, [](McpTest* t) -> Task<void> {
    Task<void> ending = t->provider_->Shutdown(t->Soon(milliseconds(300)));
    co_await std::move(ending);
    Task<Result<std::unique_ptr<ToolSession>>> opening = t->provider_->Open(t->Soon());
    const auto session = co_await std::move(opening);
    EXPECT_FALSE(session.ok());
  }(this));
  provider_.reset();
  EXPECT_EQ(Children(), 0);
}

TEST_F(McpTest, WrongOptionsAreNamed) {
  const std::vector<std::pair<McpOptions, std::string>> cases = {
      {{}, "command or a URL"},
      {{.command = {"x"}, .url = "http://localhost:1/"}, "command or a URL"},
      {{.command = {""}}, "empty word"},
      {{.url = "ftp://x"}, "ftp"},
      {{.command = {"x"}, .version = "1.0"}, "'1.0'"},
      {{.command = {"x"}, .connections_max = 0}, "connections_max"},
      {{.command = {"x"}, .message_bytes_max = 1}, "message_bytes_max"}};
  for (const auto& [options, name] : cases) {
    const auto provider = MakeMcpTools(*loop_, options);
    EXPECT_EQ(provider.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(provider.status().message(), HasSubstr(name));
  }
}

TEST(McpMessagesTest, WhatIsNoMessageIsRefused) {
  for (const std::string text :
       {"", "nonsense", "[]", "1", "{}", R"({"jsonrpc": "2.0", "id": 1})", R"({"method": 5})",
        R"({"id": "x", "result": {}})", R"({"id": 1.5, "result": {}})",
        R"({"id": 1, "result": []})", R"({"error": "x", "id": 1})",
        R"({"id": 1, "result": {"x": "\xff"}})"}) {
    const auto message = mcp::ParseServerMessage(text);
    EXPECT_EQ(message.status().code(), StatusCode::kDataLoss) << text;
  }
  const std::string deep = R"({"id": 1, "result": {"x": )" + std::string(100'000, '[');
  EXPECT_THAT(mcp::ParseServerMessage(deep).status().message(), HasSubstr("too deep"));
}

TEST(McpMessagesTest, ToolsThatAreNoneAreRefused) {
  std::vector<ToolSpec> tools;
  std::string cursor;
  for (const std::string text : {R"({})", R"({"tools": {}})", R"({"tools": [1]})",
                                 R"({"tools": [{"name": ""}]})", R"({"tools": [{"name": 1}]})"}) {
    EXPECT_EQ(mcp::AddTools(mcp::Json::parse(text), &tools, &cursor).code(), StatusCode::kDataLoss)
        << text;
  }
  mcp::Json many = {{"tools", mcp::Json::array()}};
  for (size_t i = 0; i <= kMcpToolsMax; ++i) many["tools"].push_back({{"name", "t"}});
  tools.clear();
  EXPECT_EQ(mcp::AddTools(many, &tools, &cursor).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace forebay::env
