// Goal: the HTTP client gives every answer or a typed error before its deadline, keeps connections,
// and no server can make it take more than it was told to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/http_testing.h"
#include "forebay/base/http_client.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/sse.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Task<void> Echo(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  HttpResponse response{.status = 201};
  response.headers.Add("X-Test", std::string(request.headers.Get("x-test").value_or("")));
  response.body = request.method + " " + request.url + " " + request.body;
  Task<Status> responding = exchange.Respond(std::move(response));
  const Status done = co_await std::move(responding);
  static_cast<void>(done);
}

struct Asking {
  std::unique_ptr<Loop> loop = MakeLoop();
  std::unique_ptr<HttpClient> client;
  explicit Asking(HttpClientOptions options = {}) {
    auto made = HttpClient::Create(*loop, std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    if (made.ok()) client = std::move(*made);
  }
  Task<void> Ask(HttpCall call, std::optional<Result<HttpResponse>>* out) {
    Task<Result<HttpResponse>> sending = client->Send(std::move(call));
    Result<HttpResponse> answer = co_await std::move(sending);
    out->emplace(std::move(answer));
  }
  Result<HttpResponse> Send(HttpCall call) {
    if (call.deadline == TimePoint::max()) call.deadline = Now() + seconds(120);
    std::optional<Result<HttpResponse>> out;
    RunTask(*loop, Ask(std::move(call), &out));
    return std::move(*out);
  }
  Result<HttpResponse> Get(const std::string& url) { return Send({.request = {.url = url}}); }
};

TEST(HttpClientTest, SendsAndReceives) {
  TestServer server(Echo);
  Asking asking;
  for (int i = 0; i < 3; ++i) {
    HttpCall call{.request = {.method = "POST", .url = server.url() + "/p?q", .body = "text"}};
    call.request.headers.Add("X-Test", "yes");
    const Result<HttpResponse> answer = asking.Send(std::move(call));
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(answer->status, 201);
    EXPECT_EQ(answer->headers.Get("x-TEST"), "yes");
    EXPECT_EQ(answer->body, "POST /p?q text");
  }
  EXPECT_EQ(asking.client->connections(), 1U);
  EXPECT_EQ(server.stats().connections_total, 1);
  const Result<HttpResponse> head =
      asking.Send({.request = {.method = "HEAD", .url = server.url() + "/h"}});
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head->body, "");
}

TEST(HttpClientTest, SpeaksOverUnixSocketsAndTls) {
  const TestCertificate certificate;
  const std::string path = certificate.folder + "/s";
  TestServer over_unix(Echo, {.listen = {"unix:" + path}});
  Asking asking({.ca_file = certificate.certificate_file});
  Result<HttpResponse> answer = asking.Get("unix:" + path + ":/u");
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->body, "GET /u ");

  TestServer tls(
      Echo, {.certificate_file = certificate.certificate_file, .key_file = certificate.key_file});
  EXPECT_THAT(tls.url(), HasSubstr("https://127.0.0.1:"));
  const std::string large(3 << 20, 'x');
  answer = asking.Send({.request = {.method = "POST", .url = tls.url() + "/t", .body = large}});
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->body, "POST /t " + large);
  answer = asking.Get("https://localhost:" + std::to_string(tls.port()) + "/n");
  EXPECT_TRUE(answer.ok()) << answer.status().ToString();
  // A certificate that nobody vouches for.
  Asking wary;
  answer = wary.Get(tls.url() + "/t");
  EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(answer.status().message(), HasSubstr("certificate verify failed"));
  EXPECT_EQ(wary.client->connections(), 0U);
  // Plain HTTP to a TLS port, and TLS to a plain one.
  answer = asking.Get("http://127.0.0.1:" + std::to_string(tls.port()));
  EXPECT_FALSE(answer.ok());
  TestServer plain(Echo);
  answer = asking.Get("https://127.0.0.1:" + std::to_string(plain.port()));
  EXPECT_FALSE(answer.ok());
  EXPECT_EQ(HttpClient::Create(*asking.loop, {.ca_file = "/none"}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(HttpClientTest, EveryWaitHasADeadline) {
  std::atomic<int> begun = 0;
  std::atomic<int> gone = 0;
  Loop* server_loop = nullptr;
  const auto hang = [&](HttpExchange& exchange) -> Task<void> {
    const OneShot<bool> left(*server_loop);
    exchange.OnDisconnect([left] { left.Set(true); });
    ++begun;
    auto wait = left.Wait();
    co_await wait;
    ++gone;
  };
  TestServer server(
      [&](HttpExchange& e) { return e.request().url == "/hang" ? hang(e) : Echo(e); });
  server_loop = &server.thread().loop();
  const HttpRequest hanging{.url = server.url() + "/hang"};
  Asking asking({.connections_per_origin_max = 1});
  // A deadline may pass before the server has heard of the request: then a later one.
  for (Duration within = milliseconds(100); begun == 0; within *= 2) {
    const Result<HttpResponse> answer =
        asking.Send({.request = hanging, .deadline = Now() + within});
    EXPECT_EQ(answer.status().code(), StatusCode::kDeadlineExceeded) << answer.status().ToString();
    EXPECT_THAT(answer.status().message(), HasSubstr(server.url()));
    EXPECT_EQ(asking.client->connections(), 0U);
  }
  while (gone < begun) usleep(1000);  // the server is told

  // Two at once on one connection: the second waits for its place until its deadline.
  std::optional<Result<HttpResponse>> first;
  const TimePoint deadline = Now() + milliseconds(400);
  asking.loop->Spawn(asking.Ask({.request = hanging, .deadline = deadline}, &first));
  Result<HttpResponse> answer =
      asking.Send({.request = hanging, .deadline = deadline - milliseconds(300)});
  EXPECT_EQ(answer.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(answer.status().message(), HasSubstr("in use"));
  // The third has it once the first has given up.
  answer = asking.Get(server.url() + "/a");
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->body, "GET /a ");
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->status().code(), StatusCode::kDeadlineExceeded);
}

TEST(HttpClientTest, ManyRequestsShareFewConnections) {
  TestServer server(Echo);
  Asking asking({.connections_per_origin_max = 3});
  std::vector<std::optional<Result<HttpResponse>>> answers(50);
  for (size_t i = 0; i < answers.size(); ++i) {
    HttpCall call{.request = {.url = server.url() + "/" + std::to_string(i)},
                  .deadline = Now() + seconds(120)};
    asking.loop->Spawn(asking.Ask(std::move(call), &answers[i]));
  }
  ASSERT_TRUE(asking.Get(server.url() + "/last").ok());
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].has_value() && answers[i]->ok());
    EXPECT_EQ((**answers[i]).body, "GET /" + std::to_string(i) + " ");
  }
  EXPECT_LE(server.stats().connections_total, 3);
}

TEST(HttpClientTest, AServerThatAnswersWhatItLikesIsAnError) {
  const auto reply = [](const std::string& bytes, HttpCall call = {}) {
    RawServer server([&](RawConnection& connection) {
      connection.ReadUntil("\r\n\r\n");
      connection.Send(bytes);
    });
    Asking asking({.header_bytes_max = 4096});
    call.request.url = server.url();
    const Result<HttpResponse> answer = asking.Send(std::move(call));
    EXPECT_EQ(asking.client->connections(), 0U);
    return answer.ok() ? "ok " + answer->body : std::string(StatusCodeName(answer.status().code()));
  };
  EXPECT_EQ(reply(""), "unavailable");
  EXPECT_EQ(reply("HTTP/1.1 200"), "unavailable");
  EXPECT_EQ(reply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), "unavailable");
  EXPECT_EQ(reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
            "unavailable");
  EXPECT_EQ(reply("hello there\r\n\r\n"), "data_loss");
  EXPECT_EQ(reply("HTTP/1.1 2x0 OK\r\n\r\n"), "data_loss");
  EXPECT_EQ(reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), "data_loss");
  EXPECT_EQ(reply("HTTP/1.1 200 OK\r\nX: " + std::string(9000, 'x') + "\r\n\r\n"),
            "resource_exhausted");
  EXPECT_EQ(reply("HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", {.body_bytes_max = 100}),
            "resource_exhausted");
  EXPECT_EQ(reply("HTTP/1.1 200 OK\r\n\r\n" + std::string(101, 'x'), {.body_bytes_max = 100}),
            "resource_exhausted");
  // And what is allowed, if unusual.
  EXPECT_EQ(reply("HTTP/1.1 200 OK\r\n\r\nuntil the end"), "ok until the end");
  EXPECT_EQ(reply("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n"
                  "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"),
            "ok ");
}

TEST(HttpClientTest, AnEarlyAnswerCountsThoughTheRequestCouldNotBeSent) {
  RawServer server([](RawConnection& connection) {
    connection.ReadUntil("\r\n\r\n");
    connection.Send("HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong");
    connection.EndWriting();
    connection.ReadAll();
  });
  Asking asking;
  const Result<HttpResponse> answer = asking.Send(
      {.request = {.method = "POST", .url = server.url(), .body = std::string(8 << 20, 'x')}});
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->status, 413);
}

TEST(HttpClientTest, AConnectionThatDiedInTheMeantimeIsReplaced) {
  std::atomic<int> connections = 0;
  RawServer server([&](RawConnection& connection) {
    ++connections;
    connection.ReadUntil("\r\n\r\n");
    connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    if (connections == 2) connection.ReadUntil("\r\n\r\n");  // a second request, then gone
  });
  Asking asking;
  ASSERT_TRUE(asking.Get(server.url()).ok());
  EXPECT_TRUE(asking.Get(server.url()).ok());  // the first connection is closed: seen at once
  // The second one is closed when the request is there: GET may be sent again.
  EXPECT_TRUE(asking.Get(server.url()).ok());
  EXPECT_EQ(connections, 3);
}

TEST(HttpClientTest, CannotConnect) {
  uint16_t port = 0;
  {
    port = RawServer([](RawConnection&) {}).port();
  }
  Asking asking;
  Result<HttpResponse> answer = asking.Get("http://127.0.0.1:" + std::to_string(port) + "/x");
  EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(answer.status().message(), HasSubstr("GET http://127.0.0.1:"));
  EXPECT_THAT(answer.status().message(), HasSubstr("refused"));
  EXPECT_EQ(asking.Get("unix:/none/such.sock:/").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(asking.Get("unix:/" + std::string(200, 'x')).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(asking.client->connections(), 0U);
}

TEST(HttpClientTest, NothingCanBeSmuggledIntoARequest) {
  Asking asking;
  HttpCall call{.request = {.url = "http://127.0.0.1:1/"}};
  call.request.headers.Add("X", "a\r\nY: b");
  EXPECT_EQ(asking.Send(call).status().code(), StatusCode::kInvalidArgument);
  call.request.headers = {{"X: y\r\nZ", "a"}};
  EXPECT_EQ(asking.Send(call).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      asking.Send({.request = {.method = "G T", .url = "http://127.0.0.1:1/"}}).status().code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(asking.Get("http://127.0.0.1:1/a b").status().code(), StatusCode::kInvalidArgument);
}

Task<void> SendEvents(HttpExchange& exchange) {
  Task<Status> beginning = exchange.Begin(200, {{"Content-Type", "text/event-stream"}});
  Status status = co_await std::move(beginning);
  for (int i = 0; i < 100 && status.ok(); ++i) {
    Task<Status> writing = exchange.Write(SseMessage("event " + std::to_string(i)));
    status = co_await std::move(writing);
  }
  if (status.ok()) {
    Task<Status> ending = exchange.End();
    status = co_await std::move(ending);
  }
}

Task<void> ReadEvents(HttpClient* client, HttpCall call, int stop_after, int* events) {
  Task<Result<std::unique_ptr<HttpStream>>> opening = client->Open(std::move(call));
  Result<std::unique_ptr<HttpStream>> stream = co_await std::move(opening);
  EXPECT_TRUE(stream.ok()) << stream.status().ToString();
  if (!stream.ok()) co_return;
  EXPECT_EQ((*stream)->headers().Get("content-type"), "text/event-stream");
  SseReader reader(std::move(*stream));
  while (*events < stop_after) {
    Task<Result<std::optional<SseEvent>>> reading = reader.Next();
    Result<std::optional<SseEvent>> event = co_await std::move(reading);
    EXPECT_TRUE(event.ok());
    if (!event.ok() || !event->has_value()) co_return;
    EXPECT_EQ((*event)->data, "event " + std::to_string(*events));
    ++*events;
  }
}

TEST(HttpClientTest, ReadsServerSentEventsAsTheyCome) {
  TestServer server(SendEvents);
  Asking asking;
  const HttpCall call{.request = {.url = server.url()}, .deadline = Now() + seconds(120)};
  int events = 0;
  RunTask(*asking.loop, ReadEvents(asking.client.get(), call, 1000, &events));
  EXPECT_EQ(events, 100);
  EXPECT_EQ(asking.client->connections(), 1U);  // kept
  events = 0;
  RunTask(*asking.loop, ReadEvents(asking.client.get(), call, 5, &events));
  EXPECT_EQ(asking.client->connections(), 0U);  // dropped in the middle: not
}

TEST(HttpClientTest, ADroppedTaskClosesItsConnection) {
  std::atomic<int> gone = 0, came = 0;
  Loop* server_loop = nullptr;
  TestServer server([&](HttpExchange& exchange) -> Task<void> {
    const OneShot<bool> left(*server_loop);
    exchange.OnDisconnect([left] { left.Set(true); });
    ++came;
    auto wait = left.Wait();
    co_await wait;
    ++gone;
  });
  server_loop = &server.thread().loop();
  Asking asking;
  // Drops the inner task when the request is under way.
  struct Dropper {
    static Task<void> Start(HttpClient* client, HttpCall call) {
      Task<Result<HttpResponse>> sending = client->Send(std::move(call));
      const Result<HttpResponse> never = co_await std::move(sending);
      ADD_FAILURE() << "nobody answers";
    }
    static Task<void> Run(Loop* loop, HttpClient* client, HttpCall call, std::atomic<int>* came) {
      auto inner = std::make_unique<Task<void>>(Start(client, std::move(call)));
      auto awaiter = std::move(*inner).operator co_await();
      awaiter.await_suspend(std::noop_coroutine()).resume();
      while (*came == 0) {
        auto sleep = loop->SleepUntil(loop->Now() + milliseconds(1));
        co_await sleep;
      }
      inner.reset();
    }
  };
  RunTask(*asking.loop, Dropper::Run(asking.loop.get(), asking.client.get(),
                                     {.request = {.url = server.url()}}, &came));
  EXPECT_EQ(asking.client->connections(), 0U);
  while (gone == 0) usleep(1000);
}

TEST(HttpUrlTest, Parses) {
  const auto parse = [](const std::string& text) {
    const Result<HttpUrl> url = ParseUrl(text);
    return url.ok() ? url->Origin() + " " + url->target : "error";
  };
  EXPECT_EQ(parse("http://a.example"), "http://a.example:80 /");
  EXPECT_EQ(parse("https://a.example:1/b/c?d=e#f"), "https://a.example:1 /b/c?d=e");
  EXPECT_EQ(parse("http://a.example?x"), "http://a.example:80 /?x");
  EXPECT_EQ(parse("http://[::1]:8000/"), "http://[::1]:8000 /");
  EXPECT_EQ(parse("unix:/a/b.sock:/v1"), "unix:/a/b.sock /v1");
  EXPECT_EQ(parse("unix:/a/b.sock"), "unix:/a/b.sock /");
  for (const char* wrong :
       {"", "a.example", "ftp://a", "http://", "http://:80", "http://a:", "http://a:0",
        "http://a:65536", "http://a:1x", "http://u@a/", "http://[::1", "http://[::1]8",
        "http://a/ b", "http://a/\r\nX: y", "unix:relative", "unix:/a:b"}) {
    EXPECT_EQ(parse(wrong), "error") << wrong;
  }
}

TEST(SseTest, CutsLinesIntoEvents) {
  const std::string text =
      ": a comment\n\ndata: one\n\nevent: e\r\ndata:two\r\ndata: 2\r\nid: 7\r\nretry: 5\r\n\r\n"
      "event: without data\n\ndata\n\rdata:  three\r\rdata: not complete\n";
  const std::vector<SseEvent> expected = {{.data = "one"},
                                          {.event = "e", .data = "two\n2", .id = "7"},
                                          {.data = ""},
                                          {.data = " three"}};
  for (size_t step = 1; step <= text.size(); ++step) {
    SseParser parser;
    std::vector<SseEvent> events;
    for (size_t i = 0; i < text.size(); i += step) {
      parser.Feed(std::string_view(text).substr(i, step));
      while (true) {
        Result<std::optional<SseEvent>> event = parser.Next();
        ASSERT_TRUE(event.ok());
        if (!event->has_value()) break;
        events.push_back(std::move(**event));
      }
    }
    EXPECT_EQ(events, expected) << step;
  }
  EXPECT_EQ(SseMessage("a\nb"), "data: a\ndata: b\n\n");
}

TEST(SseTest, AnEventThatIsTooLongIsAnError) {
  SseParser parser(100);
  parser.Feed("data: " + std::string(200, 'x'));
  EXPECT_EQ(parser.Next().status().code(), StatusCode::kResourceExhausted);
  SseParser lines(100);
  for (int i = 0; i < 5; ++i) lines.Feed("data: " + std::string(30, 'x') + "\n");
  EXPECT_EQ(lines.Next().status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace forebay
